"""Moves of whole groups of units off the device with the largest load, by minimum cuts.

Parts of a graph with little work but expensive inner transfers, such as a mask that all layers
read, only pay if they move as a whole. The best set of units to keep is a minimum cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from solver.bounds.device_cuts import DeviceCuts
from solver.evaluation.evaluate import evaluate
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan
from solver.presolve.instance import Instance

_MOST_MOVES: Final = 100


def trimmed(units: Instance, plan: PartitionPlan, clock: Clock = UNLIMITED) -> PartitionPlan:
    """Return a plan with the same or a smaller bottleneck.

    The positions of `plan`, which is feasible, are first shifted to the middle of all chunks. Then
    the device with the largest load moves units to the preceding or the following positions, in
    turn. Candidates are its shortest units, up to half of the difference of both loads; the kept
    ones have the least load (:mod:`solver.bounds.device_cuts`). If times are too large for cuts,
    `plan` is returned.

    The objective is ``bottleneck``, without overlap, cuts made by hand, or relays.
    """
    cuts, count = DeviceCuts(units, clock=clock), len(plan.device_order)
    if not cuts.are_exact:
        return plan
    position = {name: number for number, name in enumerate(plan.device_order)}
    chunks = {name: plan.chunks.get(name, 0) for name in plan.assignment}
    places = [
        chunk * count + position[device]
        for chunk, device in zip(units.lowered(chunks), units.lowered(plan.assignment), strict=True)
    ]
    shift = (count * units.problem.chunks_per_device - 1 - max(places)) // 2
    order = [plan.device_order[(place - shift) % count] for place in range(count)]
    places = [place + shift for place in places]
    best = evaluate(units.problem, _plan(units, order, places))
    idle = 0
    for number in range(_MOST_MOVES):
        if idle == 2 or clock.is_over:
            break
        loads = {entry.device: entry.load_ns for entry in best.usage}
        moved = _moved(units, cuts, places, [loads[name] for name in order], number % 2)
        found = evaluate(units.problem, _plan(units, order, moved))
        idle += 1
        if found.feasible and found.objective < best.objective:
            best, places, idle = found, moved, 0
    return _plan(units, order, places)


def _moved(
    units: Instance, cuts: DeviceCuts, places: list[int], loads: list[int], behind: int
) -> list[int]:
    """Return positions after moves off the longest device, to following or preceding positions."""
    device, step = loads.index(max(loads)), 1 if behind else -1
    own = [unit for unit, place in enumerate(places) if place % len(loads) == device]
    limit = len(loads) * units.problem.chunks_per_device
    spare_ns = (max(loads) - loads[(device + step) % len(loads)]) // 2
    free, moved_ns = set(), 0
    for unit in sorted(own, key=lambda unit: int(units.fastest_ns[unit])):
        moved_ns += int(units.fastest_ns[unit])
        if moved_ns > spare_ns:
            break
        if 0 <= places[unit] + step < limit:
            free.add(unit)
    # A moved unit takes along its successors, or predecessors, in the same chunk.
    nexts = units.predecessors if behind else units.successors
    ties = [(unit, near) for unit in own for near in nexts[unit] if places[near] == places[unit]]
    others = set(range(len(units))).difference(own)
    _, kept = cuts.cut(sorted(free.symmetric_difference(own)), sorted(others), ties=ties)
    return [
        place + step if unit in free and not kept[unit] else place
        for unit, place in enumerate(places)
    ]


def _plan(units: Instance, order: Sequence[str], places: Sequence[int]) -> PartitionPlan:
    assignment = units.lift([order[place % len(order)] for place in places])
    used = set(assignment.values())
    return PartitionPlan(
        assignment,
        tuple(name for name in order if name in used),
        units.lift([place // len(order) for place in places]),
    )
