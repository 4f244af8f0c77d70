"""Topological orders of units that are worth cutting into stages.

A cut of one order finds only plans that are contiguous in it; every plan is contiguous in some
order. A good order depends on the sizes of values, so a few are tried: Herrmann et al.
("Acyclic partitioning of large directed acyclic graphs", CCGrid 2017) start from depth-first and
random orders; the greedy one follows schedulers that keep little alive (Liu, "An application of
generalized tree pebbling to sparse matrix factorization", 1987, in spirit: a heuristic for
graphs that are no trees).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence

from solver.presolve.instance import Instance, contract
from solver.presolve.unit_cuts import by_block


def topological_orders(units: Instance, count: int, seed: int = 0) -> Iterator[list[int]]:
    """Yield up to `count` different topological orders, the most promising first.

    The execution order comes first, random ones last. Units before a cut come before those after
    it.
    """
    seen: set[tuple[int, ...]] = set()
    in_vain = 0
    for order in _candidates(units, random.Random(seed)):
        if len(seen) >= count or in_vain >= _MOST_IN_VAIN:
            return
        order = by_block(units, order)
        in_vain += 1
        if tuple(order) not in seen:
            in_vain = 0
            seen.add(tuple(order))
            yield order


_RANDOM_ORDERS = 1000
_MOST_IN_VAIN = 20
"""Known orders in a row after which to stop: graphs of few orders are small, and their plans soon
found."""


def _candidates(units: Instance, rng: random.Random) -> Iterator[list[int]]:
    forward, backward = units.successors, units.predecessors
    identity = list(range(len(units)))
    yield identity
    yield _least_crossing(units)
    # From the outputs, with the latest reads first.
    yield _depth_first(backward, [-unit for unit in identity])
    yield _depth_first(forward, identity)[::-1]
    yield _depth_first(backward, identity)
    yield _breadth_first(units)
    for _ in range(_RANDOM_ORDERS):
        rank = identity[:]
        rng.shuffle(rank)
        yield _depth_first(backward, rank)
        yield _least_crossing(units, rng)


def renumbered(units: Instance, order: Sequence[int]) -> Instance:
    """Return the same units numbered in `order`."""
    number = [0] * len(order)
    for position, unit in enumerate(order):
        number[unit] = position
    return contract(units, number, len(order))


def _depth_first(neighbours: Sequence[Sequence[int]], rank: Sequence[int]) -> list[int]:
    """Return units after all their neighbours; each as soon after them as a search meets it.

    With predecessors as neighbours this finishes one output after the other.
    """
    order: list[int] = []
    done = [False] * len(neighbours)
    by_rank = [sorted(entry, key=rank.__getitem__) for entry in neighbours]
    for root in sorted(range(len(neighbours)), key=rank.__getitem__):
        if done[root]:
            continue
        done[root] = True
        path = [(root, iter(by_rank[root]))]
        while path:
            unit, rest = path[-1]
            for other in rest:
                if not done[other]:
                    done[other] = True
                    path.append((other, iter(by_rank[other])))
                    break
            else:
                order.append(unit)
                path.pop()
    return order


def _breadth_first(units: Instance) -> list[int]:
    level = [0] * len(units)
    for unit in range(len(units)):
        level[unit] = max((level[other] + 1 for other in units.predecessors[unit]), default=0)
    return sorted(range(len(units)), key=lambda unit: (level[unit], unit))


def _least_crossing(units: Instance, rng: random.Random | None = None) -> list[int]:
    """Take, again and again, the ready unit after which the least time crosses a cut.

    A value crosses from its producer to its last reader, so a unit adds its own values and
    ends those of which it is the last reader. With `rng` every value is weighed differently.
    """
    cost = [
        # Where transfers take no time, a byte counts as a nanosecond.
        (time_ns or net.value_bytes) * (1.0 if rng is None else 0.5 + rng.random())
        for net, time_ns in zip(units.nets, units.transfers.default_ns(units.nets), strict=True)
    ]
    left = [len(net.consumers) for net in units.nets]
    score = [0.0] * len(units)
    for number, net in enumerate(units.nets):
        score[net.producer] += cost[number]
        if len(net.consumers) == 1:
            score[net.consumers[0]] -= cost[number]
    waiting = list(map(len, units.predecessors))
    taken = [False] * len(units)
    ready = [(score[unit], unit) for unit in range(len(units)) if not waiting[unit]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        known, unit = heapq.heappop(ready)
        if taken[unit] or known != score[unit]:
            continue
        taken[unit] = True
        order.append(unit)
        for number in units.nets_read[unit]:
            left[number] -= 1
            if left[number] == 1:
                last = next((c for c in units.nets[number].consumers if not taken[c]), None)
                if last is not None:
                    score[last] -= cost[number]
                    if not waiting[last]:
                        heapq.heappush(ready, (score[last], last))
        for other in units.successors[unit]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (score[other], other))
    return order
