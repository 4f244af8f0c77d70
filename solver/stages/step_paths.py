"""Lower bounds of the step of a pipeline from the loads of its stages.

Take some of the stages, k of them in the order of devices, with loads L_j. They are a chain: each
waits for the one before it in forward passes, and for the one after it in backward passes. Of m
microbatches let a stage run w forward passes before its first backward pass: in 1F1B min(m, P - j)
of P devices at most, in GPipe all. Then a step is at least

* in GPipe, and without backward passes, sum(L) + (m - 1) L_j: the passes before the stage, all of
  its own, and those after it.
* in 1F1B with w < m: until its first backward pass, all forward passes of the first microbatch and
  the backward passes after the stage; then m - w backward and forward passes in turn; then the last
  microbatch goes to the end and all the way back. Together sum(L) + sum(L_i, i > j) + (m - w) L_j.
* in 1F1B, for any w, sum(L) + (m - (w + 1) / 2) L_j: the mean of two bounds, the one above, and
  all before the stage and its own passes, or of its forward and its backward passes.

None of them falls where a load grows. So the *excess* over sum(L) keeps a limit on all stages at
the least sum(L) if every stage has the least later loads that keep that limit, which a program
from the last stage on finds (:func:`least_with_limit` does the rest).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from solver.model.arrays import Floats
from solver.model.clock import UNLIMITED, Clock
from solver.model.problem import PartitionProblem


def excess_ns(problem: PartitionProblem, flying: int, load_ns: Floats, behind_ns: Floats) -> Floats:
    """Return the least excess of a step over the sum of all loads, by each stage.

    `flying` are the most forward passes of the stages before their first backward pass, and
    `behind_ns` the sums of the loads after each.
    """
    batches = problem.microbatches
    if problem.schedule == "gpipe" or not problem.is_training:
        return (batches - 1) * load_ns
    alone: Floats = (batches - (flying + 1) / 2) * load_ns
    if flying >= batches:
        return alone
    return np.maximum(alone, (batches - flying) * load_ns + behind_ns)


def step_of_loads_ns(problem: PartitionProblem, loads_ns: Sequence[int]) -> float:
    """Return a lower bound of a step, given the loads of all stages in their order."""
    behind_ns, most_ns = 0, 0.0
    for following, load_ns in enumerate(reversed(loads_ns), start=1):
        flying = problem.in_flight(following)
        own = excess_ns(problem, flying, np.array(load_ns), np.array(behind_ns))
        most_ns = max(most_ns, float(own))
        behind_ns += load_ns
    return behind_ns + most_ns


def least_with_limit(
    least: Callable[[float], float],
    *,
    part: float,
    most: float = math.inf,
    clock: Clock = UNLIMITED,
) -> float:
    """Return a lower bound of the least sum of a limit and the least cost within it.

    `least` is the least cost within a limit; it does not grow with it, and is infinite if
    infeasible. `part` is the relative gap allowed between the bound and the least sum. Larger sums
    than `most` are ignored, and the result is no more than it. When the clock is over, the bound
    proven so far is returned.

    The sum at any limit between two is at least the smaller one plus the least cost within the
    larger. The interval with the least such bound is halved.

    Examples
    --------
    >>> least = lambda limit: 10 if limit >= 5 else 20 if limit >= 2 else math.inf
    >>> round(least_with_limit(least, part=1e-6), 3)
    15.0
    """
    lowest = least(math.inf)
    best = most
    if not lowest < best:
        return best
    if not math.isfinite(best):
        limit = 1.0
        while not math.isfinite(found := least(limit)):
            limit *= 2
        best = limit + found
    intervals = [(lowest, 0.0, best - lowest)]
    while not clock.is_over:
        bound, low, high = intervals[0]
        middle = (low + high) / 2
        if bound >= best * (1 - part) or not low < middle < high:
            break
        found = least(middle)
        best = min(best, middle + found)
        heapq.heapreplace(intervals, (low + found, low, middle))
        heapq.heappush(intervals, (bound - low + middle, middle, high))
    return min(intervals[0][0], best)
