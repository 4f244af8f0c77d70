"""Transfers between neighbouring positions of a plan's chain under relayed charging.

A plan then runs as a pipeline: with P devices and V chunks its stages are at positions
chunk * P + rank, and only neighbours exchange values. Implements ``docs/definition.md``,
"Relayed transfers".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from solver.model.arrays import Ints
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem


@dataclass(frozen=True, slots=True)
class Hops:
    """The hops of all values, grouped by value and ordered from its producer on.

    Of the chain's positions, P * V, position p is on the device of rank p mod P, where P is
    `device_count`. Each hop has the producer of its value, the position that sends it (the next one
    receives it), and the times of the value over the link and of its gradient back, 0 without one;
    both devices spend these.
    """

    position_count: int
    device_count: int
    value: Ints
    source: Ints
    forward_ns: Ints
    gradient_ns: Ints

    @property
    def target(self) -> Ints:
        """Position of the receiver."""
        return self.source + 1


NO_HOPS: Final = Hops(0, 0, *(np.zeros(0, dtype=np.int64) for _ in range(4)))


def relay_hops(problem: PartitionProblem, plan: PartitionPlan, position: Ints) -> Hops:
    """Return the hops of all values when every position relays values for later ones.

    `position` is that of every operator in the chain. The plan is total, and the charging of the
    problem is ignored. Readers at positions before the producer's, which no feasible plan has, get
    nothing.

    A value goes from its producer to the position of its last reader, or to the last position if
    the graph returns it. Hops between positions of one device take no time.
    """
    arrays, interconnect = problem.arrays, problem.interconnect
    count = len(problem.operators)
    device_count = len(plan.device_order)
    position_count = device_count * (1 + plan.stages[-1].chunk)
    end = position.copy()
    reader, read = arrays.reads.pairs(np.arange(count, dtype=np.int64))
    inside = read < count
    np.maximum.at(end, read[inside], position[reader[inside]])
    end[arrays.is_output] = position_count - 1
    length = end - position
    value = np.repeat(np.arange(count, dtype=np.int64), length)
    first = np.cumsum(length) - length
    source = np.arange(len(value), dtype=np.int64) - np.repeat(first - position, length)
    forward_ns = np.zeros(len(value), dtype=np.int64)
    gradient_ns = np.zeros(len(value), dtype=np.int64)
    rank = source % device_count
    for number, device in enumerate(plan.device_order if device_count > 1 else ()):
        following = plan.device_order[(number + 1) % device_count]
        here = np.flatnonzero(rank == number)
        forward_ns[here], gradient_ns[here] = arrays.transfer_parts_ns(
            value[here], interconnect.link(device, following), interconnect.link(following, device)
        )
    return Hops(position_count, device_count, value, source, forward_ns, gradient_ns)
