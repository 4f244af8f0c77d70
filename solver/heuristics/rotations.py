"""Cuts of rotated orders of units, for several chunks on a device.

With several chunks the last units may share a device with the first ones, such as the head of a
language model with the embedding whose values it reads. So the order is rotated at a place: the
units behind it are the second chunk of all devices, and are cut before the first ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from solver.dp.contiguous.orders import renumbered
from solver.dp.contiguous.solver import best_cut
from solver.evaluation.evaluate import evaluate
from solver.model.arrays import Ints
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan
from solver.presolve.instance import Instance

_MOST_CUTS: Final = 192
"""Places at which each rotated order may be cut."""


def can_rotate(units: Instance) -> bool:
    """Return True if a device may have two chunks, and plans are cuts of any order."""
    problem = units.problem
    return problem.chunks_per_device > 1 and not problem.cuts and units.moves_freely


def best_rotation(
    units: Instance, *, target: int = 0, clock: Clock = UNLIMITED
) -> PartitionPlan | None:
    """Return the best plan among cuts of orders that are rotated at some places; None if none fits.

    The units are such that they :func:`can_rotate`. The search stops when the first objective, in
    its own unit, reaches `target`; until the clock is over the result does not depend on it.

    Every cut is a plan. Arcs from the first part lead to the second chunk, and arcs within a part
    to the same or a later device. Costs are those of the devices, in whatever order units are cut,
    except memory, where chunks count separately: the evaluator judges it.

    Places lie at powers of two from either end, and then closer and closer to the best one.
    """
    known: dict[int, tuple[int, PartitionPlan] | None] = {}
    best: tuple[int, int, PartitionPlan] | None = None
    count = len(units)

    def is_better(place: int) -> bool:
        nonlocal best
        if place in known or not 0 < place < count or clock.is_over:
            return False
        found = known[place] = _cut(units, place)
        if found is None or (best is not None and (best[0] <= target or found[0] >= best[0])):
            return False
        best = found[0], place, found[1]
        return True

    for size in (1 << power for power in range(count.bit_length())):
        is_better(count - size)
        is_better(size)
    if best is None:
        return None
    step = min(best[1], count - best[1]) // 2
    while step:
        if not (is_better(best[1] - step) or is_better(best[1] + step)):
            step //= 2
    return best[2]


def _cut(units: Instance, place: int) -> tuple[int, PartitionPlan] | None:
    """Return the best cut of the order rotated at a place, with its value, if it fits."""
    count = len(units)
    ends: Ints = np.array(units.edges, dtype=np.int64).reshape(-1, 2)
    within = np.diff(ends < place, axis=1).ravel() == 0
    arcs = tuple((source, target) for source, target in ends[within].tolist())
    rotated = renumbered(replace(units, edges=arcs), [*range(place, count), *range(place)])
    found = best_cut(rotated, most_cuts=_MOST_CUTS)
    if found is None:
        return None
    chunks = units.lift([int(unit >= place) for unit in range(count)])
    plan = PartitionPlan(found.assignment, found.device_order, chunks)
    evaluation = evaluate(units.problem, plan)
    return (evaluation.objective[0], plan) if evaluation.feasible else None
