"""Windows and CP-SAT rows of hand-made cuts and pinned stages (:mod:`solver.model.cuts`).

The notation is that of :mod:`solver.cp.formulation`. For every cut, behind[b,p] means that all
units of block b, which begins behind the cut, are on position p or later:

    y[u,p] <= behind[b,p+1] for u in block b - 1;    behind[b,p] <= y[v,p] for v in block b

so the last position of block b - 1 is before the first one of block b. Units with a successor
(for u), or a predecessor (for v), in their own block need no row.

A stage's number counts the positions with units before it; stages without units, of unused devices
or chunks, have no number:

    occupied[p] >= x[u,p];    occupied[p] <= sum_u x[u,p]
    k x[u,p] <= sum of occupied[q] over q < p <= k + (p - k) (1 - x[u,p])    for u pinned to k
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from solver.bounds.windows import StageWindows
from solver.model.problem_fields import NO_BLOCK
from solver.presolve.instance import Instance
from solver.presolve.unit_cuts import unit_blocks, unit_stages

if TYPE_CHECKING:
    from solver.cp.linear import Literal
    from solver.cp.stage_model import StageModel


def narrowed(units: Instance, windows: StageWindows, positions: int) -> StageWindows:
    """Return windows without the positions that cuts and pinned stages exclude.

    Proof. Each block is on a later position than all of the block before it, and no block is
    empty. Stage k has k positions with units before it, so it is on position k or later.
    """
    first, last = list(windows.first), list(windows.last)
    for unit, stages in enumerate(unit_stages(units)):
        if stages:
            first[unit] = max(first[unit], stages[-1])
    if units.problem.cuts:
        members = _members(units)
        least = 0
        for own in members:
            for unit in own:
                first[unit] = max(first[unit], least)
            least = 1 + max(first[unit] for unit in own)
        most = positions - 1
        for own in reversed(members):
            for unit in own:
                last[unit] = min(last[unit], most)
            most = min(last[unit] for unit in own) - 1
    return StageWindows(tuple(first), tuple(last))


def _members(units: Instance) -> list[list[int]]:
    members: list[list[int]] = [[] for _ in range(len(units.problem.cuts) + 1)]
    for unit, block in enumerate(unit_blocks(units)):
        if block != NO_BLOCK:
            members[block].append(unit)
    return members


def add_cuts(stages: StageModel) -> None:
    """Add the rows of all cuts."""
    units = stages.units
    if not units.problem.cuts:
        return
    block_of = unit_blocks(units)
    members = _members(units)
    for before, own in itertools.pairwise(members):
        behind = _behind(stages, own)
        for unit in before:
            if all(block_of[other] != block_of[unit] for other in units.successors[unit]):
                for position in stages.positions:
                    stages.imply(stages.reaches(unit, position), behind[position + 1])
        for unit in own:
            if all(block_of[other] != block_of[unit] for other in units.predecessors[unit]):
                for position in stages.positions:
                    stages.imply(behind[position], stages.reaches(unit, position))


def _behind(stages: StageModel, own: list[int]) -> list[Literal]:
    """Return a literal for "all of `own` are on p or later", for every p and one past the last."""
    least = min(stages.windows.first[unit] for unit in own)
    most = min(stages.windows.last[unit] for unit in own)
    behind: list[Literal] = []
    for position in range(len(stages.positions) + 1):
        if position <= least:
            behind.append(True)
        elif position > most:
            behind.append(False)
        else:
            behind.append(
                stages.new_bool(
                    lambda s, p=position: all(s.position_of[u] >= p for u in own)  # type: ignore[misc]
                )
            )
            stages.imply(behind[-1], behind[-2])
    return behind


def add_pinned_stages(stages: StageModel) -> None:
    """Add the rows of all units that are pinned to a stage."""
    windows = stages.windows
    pinned = [(unit, own) for unit, own in enumerate(unit_stages(stages.units)) if own]
    if not pinned:
        return
    occupied = _occupied(stages)
    for unit, own in pinned:
        for position in range(windows.first[unit], windows.last[unit] + 1):
            before = stages.sum_of(occupied[:position])
            for stage in own:
                lower, upper = before.copy(), before.copy()
                stages.add_on(lower, unit, (position,), -stage)
                stages.add_row(lower.expression >= 0)
                stages.add_on(upper, unit, (position,), position - stage)
                stages.add_row(upper.expression <= position)


def _occupied(stages: StageModel) -> list[Literal]:
    occupied: list[Literal] = []
    for position in stages.positions:
        place = (position,)
        here = [unit for unit in range(len(stages.units)) if stages.may_be_on(unit, place)]
        if not here:
            occupied.append(False)
            continue
        if any(stages.is_fixed_on(unit, place) for unit in here):
            occupied.append(True)
            continue
        there = stages.new_bool(lambda s, p=position: p in s.position_of)  # type: ignore[misc]
        occupied.append(there)
        some = stages.sum_of([there])
        for unit in here:
            stages.add_on(some, unit, place, -1)
            each = stages.sum_of([there])
            stages.add_on(each, unit, place, -1)
            stages.add_row(each.expression >= 0)
        stages.add_row(some.expression <= 0)
    return occupied
