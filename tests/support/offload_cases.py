"""Random chains that do not fit, as plain data and as instances."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from solver import Device, Link
from solver.model.plan import MODES
from solver.offload.instance import OffloadInstance
from solver.offload.units import Unit

Case = dict[str, Any]
Growth = tuple[int, int | None]
"""Bytes of a position, and the most positions."""


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
        "stage_hop": _hops(draw, device_count),
        "host_hop": draw.choice((0, 1, 2)),
    }


def _hops(draw: random.Random, device_count: int) -> list[list[int]]:
    """Draw times between devices, in half of the cases the same of all pairs."""
    one = draw.choice((0, 1, 3))
    kinds = (one,) if draw.random() < 0.5 else (0, 1, 3, 5)
    return [[draw.choice(kinds) for _ in range(device_count)] for _ in range(device_count)]


def _unit(draw: random.Random, device_count: int) -> Case:
    host = draw.choice((None, draw.randint(1, 9), draw.randint(5, 25)))
    places = [at for at in range(device_count) if draw.random() < 0.5]
    return {
        "weight": draw.choice((0, 3, 5, 8, draw.randint(1, 12))),
        "padding": draw.choice((0, 0, 2)),
        "cache": draw.choice((0, 0, 1, 3)),
        "runs": [draw.randint(0, 6) for _ in range(device_count)],
        "host": host,
        "places": places if draw.random() < 0.1 and (places or host) else None,
        "written": draw.random() < 0.1,
    }


def random_growths(draw: random.Random, case: Case) -> list[tuple[Growth, ...]]:
    """Draw how the caches of each unit grow: not at all, for ever, or to a limit."""
    kinds: Sequence[tuple[Growth, ...]] = [
        *((), ((1, None),), ((2, None),), ((1, draw.randint(1, 6)),)),
        ((1, None), (1, draw.randint(1, 6))),
    ]
    few = draw.sample(kinds, 2)
    return [draw.choice(few) for _ in case["units"]]


def instance_of(
    *cases: Case,
    counts: Sequence[int] | None = None,
    growths: Sequence[tuple[Growth, ...]] | None = None,
    **settings: Any,
) -> OffloadInstance:
    """Return the instance of forwards that differ in times, each so often."""
    first = cases[0]
    devices = first["devices"]
    links = [
        Link(device["rate"][0] * 10**9 // device["rate"][1], device["latency"])
        for device in devices
    ]
    return OffloadInstance(
        tuple(
            _unit_of(
                f"u{index}",
                [case["units"][index] for case in cases],
                growths[index] if growths else (),
            )
            for index in range(len(first["units"]))
        ),
        tuple(Device(f"d{at}", device["memory"], f"c{at}") for at, device in enumerate(devices)),
        tuple(links),
        first["host_memory"],
        tuple(f"phase {number}" for number in range(len(cases))),
        tuple(counts or [1] * len(cases)),
        tuple(tuple(map(tuple, case["stage_hop"])) for case in cases),
        tuple(case["host_hop"] for case in cases),
        **settings,
    )


def _unit_of(name: str, forms: Sequence[Case], growths: tuple[Growth, ...]) -> Unit:
    first = forms[0]
    allowed = {
        "resident": first["places"] != [],
        "streamed": first["weight"] > 0 and not first["written"] and first["places"] != [],
        "host": first["host"] is not None,
    }
    return Unit(
        name,
        first["weight"],
        first["cache"],
        first["padding"],
        tuple(mode for mode in MODES if allowed[mode]),
        tuple(tuple(form["runs"]) for form in forms),
        tuple(form["host"] or 0 for form in forms),
        growths,
        devices=None if first["places"] is None else tuple(first["places"]),
    )
