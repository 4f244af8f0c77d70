"""Random chains that do not fit, as plain data and as problems."""

from __future__ import annotations

import random
from typing import Any

from solver import Device, Link
from solver.offload.model import OffloadDevice, OffloadHost, OffloadProblem, Unit

Case = dict[str, Any]


def random_case(draw: random.Random, most_units: int, device_count: int) -> Case:
    """Draw a chain of up to `most_units` units; in half of the cases only two kinds occur."""
    count = draw.randint(1, most_units)
    kinds = [_unit(draw, device_count) for _ in range(draw.choice((2, count)))]
    units = [draw.choice(kinds) for _ in range(count)]
    total = sum(unit["weight"] + unit["cache"] for unit in units)
    devices = [
        {
            "memory": max(1, round(total * draw.uniform(0.2, 1.1) / device_count)),
            "rate": draw.choice(((1, 1), (2, 1), (1, 2), (3, 1))),
            "latency": draw.choice((0, 0, 2)),
        }
        for _ in range(device_count)
    ]
    return {
        "units": units,
        "devices": devices,
        "host_memory": draw.choice((None, None, max(1, total // 2))),
        "stage_hop": draw.choice((0, 1, 3)),
        "host_hop": draw.choice((0, 1, 2)),
        "objective": draw.choice(("latency", "bottleneck")),
    }


def _unit(draw: random.Random, device_count: int) -> Case:
    return {
        "weight": draw.choice((0, 3, 5, 8, draw.randint(1, 12))),
        "padding": draw.choice((0, 0, 2)),
        "cache": draw.choice((0, 0, 1, 3)),
        "runs": [draw.randint(0, 6) for _ in range(device_count)],
        "host": draw.choice((None, draw.randint(1, 9), draw.randint(5, 25))),
        "written": draw.random() < 0.1,
    }


def problem_of(case: Case) -> OffloadProblem:
    """Return the problem that the plain data says."""
    return OffloadProblem(
        [
            Unit(
                f"u{index}",
                unit["weight"],
                unit["cache"],
                {f"c{place}": run for place, run in enumerate(unit["runs"])},
                unit["host"],
                unit["written"],
                unit["padding"],
            )
            for index, unit in enumerate(case["units"])
        ],
        [
            OffloadDevice(
                Device(f"d{place}", device["memory"], f"c{place}"),
                Link(device["rate"][0] * 10**9 // device["rate"][1], device["latency"]),
            )
            for place, device in enumerate(case["devices"])
        ],
        OffloadHost(case["host_memory"]),
        case["stage_hop"],
        case["host_hop"],
        case["objective"],
    )
