"""The best plan of those whose stages end where little crosses, for graphs with too many ideals.

Two towers that meet at their ends have as many ideals as there are pairs of a place in one and a
place in the other. Of the places where a stage could well end few are left, and the program over
ideals is exact on them.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from solver.bounds.spine import longest_path
from solver.dp.ideal_program import SolveIdeals
from solver.model.arrays import Bools, Ints
from solver.model.clock import Clock
from solver.model.cuts import is_hand_made
from solver.model.plan import PartitionPlan
from solver.model.problem import ColocationGroup
from solver.presolve.graph import quotient_arcs
from solver.presolve.instance import Instance
from solver.stages.ideals import list_ideals

_MOST_UNITS = 2_000
"""More take too long to compare two by two."""
_MOST_IDEALS = 1_500
_MOST_ON_PATH = 0.75
"""Where a longest path has more of the work, cuts of orders along it are as good."""


def plan_at_cheap_borders(
    units: Instance, clock: Clock, solve: SolveIdeals
) -> PartitionPlan | None:
    """Return the best plan that ends stages at cheap places only, if some are few and fit.

    Parameters
    ----------
    units : Instance
        Of any problem; those with several chunks, hand-made cuts or pins, with one long path, or
        with very many units are declined.
    clock : Clock
        Ends the search.
    solve : callable
        The program over ideals.

    Returns
    -------
    PartitionPlan or None
        None if declined, or if no such plan fits or is found in time.
    """
    problem = units.problem
    if (
        not 2 <= len(units) <= _MOST_UNITS
        or not problem.is_forward_only
        or is_hand_made(problem)
        or any(allowed is not None for allowed in units.allowed_devices)
    ):
        return None
    work = units.fastest_ns
    if work[longest_path(units)].sum() > _MOST_ON_PATH * work.sum():
        return None
    groups = cheap_groups(units)
    names = [
        [problem.operators[index].name for unit in group for index in units.members[unit]]
        for group in groups
    ]
    together = tuple(
        ColocationGroup(tuple(group), "between cheap borders") for group in names if len(group) > 1
    )
    coarse = problem.replace(colocation=(*problem.colocation, *together))
    return solve(coarse, clock).plan


def cheap_groups(units: Instance) -> list[list[int]]:
    """Return units in groups, so that the graph of groups has few ideals.

    A *border* is what a unit depends on, with itself. Its cost is what leaves that set; its span is
    the least work by which a cheaper border differs that contains it or lies within it (nothing
    and everything are such). The borders of the widest spans are kept, as many as leave few
    ideals. Units are in one group if the same of these borders contain them. An arc leads to a unit
    that is in no other borders than its source, so the groups have no cycle.
    """
    inside = _closures(units)
    spans = _spans(inside, _costs(units, inside), units.fastest_ns)
    order = np.argsort(-spans, kind="stable")
    counts = range(1, len(units) + 1)
    most = bisect_left(
        counts, True, key=lambda count: not _are_few(units, _groups(inside, order[:count]))
    )
    return _groups(inside, order[:most])


def _closures(units: Instance) -> Bools:
    """Return, for every unit (row), what it depends on, and itself."""
    inside = np.eye(len(units), dtype=np.bool_)
    for unit, before in enumerate(units.predecessors):
        inside[unit] |= inside[list(before)].any(axis=0)
    return inside


def _costs(units: Instance, inside: Bools) -> Ints:
    """Return the time of all transfers that leave each border."""
    costs = np.zeros(len(units), dtype=np.int64)
    for net, time_ns in zip(units.nets, units.transfers.least_ns, strict=True):
        if net.producer >= 0 and net.consumers:
            leaves = inside[:, net.producer] & ~inside[:, list(net.consumers)].all(axis=1)
            costs += time_ns * leaves
    return costs


def _spans(inside: Bools, costs: Ints, work: Ints) -> Ints:
    """Return the span of every border; of equal ones the later counts as cheaper."""
    before = inside @ work
    spans = np.minimum(before, work @ inside)
    places = np.arange(len(costs))
    for unit in range(len(costs)):
        cheaper = (costs < costs[unit]) | ((costs == costs[unit]) & (places > unit))
        cheaper &= inside[unit] | inside[:, unit]
        if cheaper.any():
            spans[unit] = min(spans[unit], np.abs(before[cheaper] - before[unit]).min())
    return spans


def _groups(inside: Bools, borders: Ints) -> list[list[int]]:
    """Return the units by the borders that contain them, those of most borders first."""
    members: dict[bytes, list[int]] = {}
    for unit, column in enumerate(inside[np.sort(borders)].T):
        members.setdefault(column.tobytes(), []).append(unit)
    return sorted(members.values(), key=lambda group: -int(inside[borders, group[0]].sum()))


def _are_few(units: Instance, groups: list[list[int]]) -> bool:
    number = {unit: place for place, group in enumerate(groups) for unit in group}
    group_of = [number[unit] for unit in range(len(units))]
    edges = quotient_arcs(units.edges, group_of)
    return list_ideals(len(groups), edges, _MOST_IDEALS) is not None
