"""Random feasible plans, a baseline for planners.

A draw is an order of the devices and a cut of the execution order into stages, repaired so that
every stage fits its device: dynamic programming finds the cuts whose remainder fits, and the one
closest to the draw is taken.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import numpy as np

from experiments.planners.sequence import LayerSequence
from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask, judged
from solver import Device, SolveLimits, SolveStatus, in_flight
from solver.dp.contiguous.segments import SegmentRows

_NAME: Final = "random"
_MOST_DRAWS: Final = 20
_WORK_LIMIT: Final = 2_000_000_000
"""Stages examined over all draws: a limit of work gives a seed the same plan on any machine."""


def random_cut(
    layers: LayerSequence, devices: Sequence[Device], draws: random.Random
) -> list[int] | None:
    """Return random ends of stages on `devices`, each stage within its memory.

    Parameters
    ----------
    devices : sequence of Device
        Devices in pipeline order.

    Returns
    -------
    list of int or None
        Ends of the stages, some possibly empty. None if no cut fits this device order.

    Notes
    -----
    Takes O(devices * layers**2) time. Memory is that of
    :func:`~solver.evaluation.evaluate.evaluate`, assuming that all devices of a pipeline are in
    use and none relays values.
    """
    count = len(layers)
    wanted = [*sorted(draws.randint(0, count) for _ in devices[1:]), count]
    # fits[k, i]: layers from i on fit the devices from k on; then stage k ends at end[k, i].
    fits = np.zeros((len(devices) + 1, count + 1), dtype=np.bool_)
    fits[:, count] = True
    end = np.full((len(devices), count + 1), count, dtype=np.int64)
    bounds = np.cumsum([0, *map(len, layers.units.members)])
    rows = SegmentRows(layers.units, [])
    before = [_in_flight(layers, devices, rank) - 1 for rank in range(len(devices))]
    for start in reversed(range(count)):
        for _ in layers.units.members[start]:
            rows.step()
        row = rows.row(int(bounds[-1]))
        offset = bounds[start + 1 :] - bounds[start] - 1
        held_bytes = row.weights_bytes + row.received_bytes + row.live_bytes + row.waiting_bytes
        memory_bytes, saved_bytes = held_bytes[offset], row.saved_bytes[offset]
        # Last device first: after an empty stage the next one starts at the same layer.
        for rank, device in reversed(list(enumerate(devices))):
            valid = fits[rank + 1, start:].copy()
            if device.memory_bytes is not None:
                valid[1:] &= memory_bytes + before[rank] * saved_bytes <= device.memory_bytes
            ends = np.flatnonzero(valid) + start
            if len(ends):
                fits[rank, start] = True
                end[rank, start] = ends[np.argmin(np.abs(ends - wanted[rank]))]
    if not fits[0, 0]:
        return None
    found = [0]
    for rank in range(len(devices)):
        found.append(int(end[rank, found[-1]]))
    return found[1:]


def _in_flight(layers: LayerSequence, devices: Sequence[Device], rank: int) -> int:
    problem = layers.problem
    return in_flight(
        problem.schedule,
        problem.microbatches,
        chunks=problem.chunks_per_device,
        devices=len(devices),
        followers=len(devices) - 1 - rank,
    )


def _plan(task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    problem = task.problem
    layers = LayerSequence.of(problem)
    draws = random.Random(limits.seed)
    affordable = _WORK_LIMIT // (layers.stage_count * len(layers) ** 2)
    count = max(1, min(_MOST_DRAWS, affordable))
    answer = PlannerAnswer(reason=f"no cut fits any of {count} random orders of the devices")
    hopeless: set[tuple[int | None, ...]] = set()
    for _ in range(count):
        devices = draws.sample(problem.devices, layers.stage_count)
        capacities = tuple(device.memory_bytes for device in devices)
        ends = None if capacities in hopeless else random_cut(layers, devices, draws)
        if ends is None:
            hopeless.add(capacities)
            continue
        plan = layers.plan(ends, [device.name for device in devices])
        answer = judged(_NAME, problem, plan)
        # Pins, cuts and relayed values may still break limits.
        if answer.result is not None and answer.result.status is SolveStatus.FEASIBLE:
            break
    return answer


RANDOM_PLANNERS: Final = (
    PlannerSpec(
        _NAME,
        "a random contiguous cut on a random order of the devices, repaired to fit",
        "of this project",
        _plan,
        seeded=True,
    ),
)
