"""Coarser graphs for problems that are too large to be searched unit by unit.

Clusters are consecutive in a topological order with cheap cuts, and they end where little
crosses. Clusters of consecutive units never close a cycle (Herrmann et al., "Multilevel
algorithms for acyclic partitioning of directed acyclic graphs", SIAM J. Sci. Comput. 41, 2019,
section 4.1). Merging (:func:`solver.presolve.instance.contract`) only adds colocation: every plan
of the coarse graph is a plan of the original one at the same cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.bounds.regional.positions import PositionBound
from solver.bounds.regional.region_cuts import Region, chain_head, shared_nets
from solver.model.arrays import Ints
from solver.presolve.instance import Instance
from solver.presolve.unit_cuts import unit_blocks, unit_stages

_STEPS = 200
"""Parts of a region's work in which orders are compared."""


def cheap_order(bound: PositionBound) -> list[int]:
    """Return a topological order of the units in which cuts of any amount of work are cheap.

    The units keep their order but for both ends of every region
    (:mod:`solver.bounds.regional.markers`). At its start a heavy chain, such as a running sum, is
    put off as long as its inputs are cheaper to send than the sum. At its end the readers of a
    value with many readers come first as soon as their own values together are cheaper to send than
    that one.
    """
    order: list[int] = []
    ends = [*bound.cuts.tolist(), None]
    for region, end in enumerate(ends):
        if region in bound.regions:
            own = bound.members[region]
            order += [own[unit] for unit in _region_order(bound.regions[region])]
        if end is not None:
            order.append(end)
    return order


def _region_order(region: Region) -> list[int]:
    """Return an order of one region; see :func:`cheap_order`."""
    count = len(region.work_ns)
    order = list(range(count))
    if not region.nets or not any(region.work_ns):
        return order
    shared = shared_nets(region)
    head = chain_head(region, set(shared))
    if head is not None:
        late = {head}
        for source, target in sorted(region.edges):
            if source in late:
                late.add(target)
        other = [unit for unit in order if unit not in late] + sorted(late)
        step = int(np.argmin(np.append(_is_cheaper(region, other, order), False)))
        first = other[: _cheapest_place(region, other, step - 1)] if step else []
        taken = set(first)
        order = first + [unit for unit in order if unit not in taken]
    for net in shared:
        early = set(region.nets[net].consumers)
        for source, target in sorted(region.edges, reverse=True):
            if target in early:
                early.add(source)
        other = [u for u in order if u in early] + [u for u in order if u not in early]
        cheaper = np.append(_is_cheaper(region, other, order)[::-1], False)
        step = _STEPS - int(np.argmin(cheaper))
        if step < _STEPS:
            last = other[_cheapest_place(region, other, step) :]
            taken = set(last)
            order = [unit for unit in order if unit not in taken] + last
    return order


def _steps(region: Region, order: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the step and the crossing time of every prefix of an order, the empty one first."""
    count = len(order)
    place = [0] * count
    for position, unit in enumerate(order):
        place[unit] = position
    change = np.zeros(count + 2, dtype=np.int64)
    for net in region.nets:
        start = 0 if net.producer < 0 else place[net.producer] + 1
        stop = count + 1 if net.leaves else max(place[unit] for unit in net.consumers) + 1
        change[start] += net.time_ns
        change[stop] -= net.time_ns
    own = np.array(region.work_ns, dtype=np.int64)[np.array(order, dtype=np.int64)]
    work = np.concatenate([[0], np.cumsum(own)])
    step: Ints = np.minimum(work * _STEPS // int(work[-1]), _STEPS - 1)
    return step, np.cumsum(change)[: count + 1]


def _is_cheaper(region: Region, order: Sequence[int], than: Sequence[int]) -> list[bool]:
    """Return, by step of work, True if cuts of one order cost at most those of another."""
    least = []
    for each in (order, than):
        step, crossing = _steps(region, each)
        cheapest = np.full(_STEPS, np.iinfo(np.int64).max)
        np.minimum.at(cheapest, step, crossing)
        least.append(cheapest)
    result: list[bool] = (least[0] <= least[1]).tolist()
    return result


def _cheapest_place(region: Region, order: Sequence[int], step: int) -> int:
    """Return the length of the cheapest prefix in a step, or of the first one after it."""
    steps, crossing = _steps(region, order)
    here = np.flatnonzero(steps == step)
    if not len(here):
        return int(np.searchsorted(steps, step))
    return int(here[np.argmin(crossing[here])])


def consecutive_clusters(units: Instance, order: Sequence[int], most: int) -> tuple[list[int], int]:
    """Divide an order of the units into about `most` clusters that end where little crosses.

    Work, weights and units together are divided into equal parts, and each part ends a cluster at
    its cheapest place. Pins and cuts end clusters too: units that allow different devices stay
    separate. `order` is topological. O(n log n).

    Returns the cluster of each unit, numbered along `order`, and their number.
    """
    count = len(units)
    sequence = np.array(order, dtype=np.int64)
    place = np.empty(count, dtype=np.int64)
    place[sequence] = np.arange(count)
    share = np.full(count, 0.1 / count)
    for amount in (units.fastest_ns, units.first_weights):
        if amount.sum() > 0:
            share += amount / amount.sum()
    position = np.concatenate([[0.0], np.cumsum(share[sequence])])
    part = np.minimum((position / position[-1] * most).astype(np.int64), most - 1)
    crossing = np.zeros(count + 1)
    transfers = units.transfers
    for net, time_ns in zip(transfers.nets, transfers.least_ns, strict=True):
        last = count - 1 if net.is_output else max(place[unit] for unit in net.consumers)
        crossing[place[net.producer] + 1] += time_ns
        crossing[last + 1] -= time_ns
    crossing = np.cumsum(crossing)
    by_cost = np.lexsort((crossing, part))
    _, first = np.unique(part[by_cost], return_index=True)
    is_start = np.zeros(count + 1, dtype=np.bool_)
    is_start[by_cost[first]] = True
    blocks, stages = unit_blocks(units), unit_stages(units)
    pins = [(units.allowed_devices[unit], blocks[unit], stages[unit]) for unit in order]
    for index in range(1, count):
        if pins[index] != pins[index - 1]:
            is_start[index] = True
    is_start[0] = False
    number = np.cumsum(is_start[:count])
    return number[place].tolist(), int(number[-1]) + 1
