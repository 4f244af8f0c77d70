"""What the step of a pipeline takes at least, from the loads of its stages.

Take some of the stages, k of them in the order of devices, with loads L_j. They are a chain: each
waits for the one before it in forward passes, and for the one behind it in backward passes. Of m
microbatches let a stage run w forward passes before its first backward pass: in 1F1B min(m, P - j)
of P devices at most, in GPipe all. Then a step is at least

* in GPipe, and without backward passes, sum(L) + (m - 1) L_j: what comes before the stage, all of
  its passes, what comes behind it.
* in 1F1B with w < m: until its first backward pass, all forward passes of the first microbatch and
  the backward passes behind the stage; then m - w backward and forward passes in turn; then the
  last microbatch goes to the end and all the way back. Together
  sum(L) + sum(L_i, i > j) + (m - w) L_j.
* in 1F1B, whatever w is, sum(L) + (m - (w + 1) / 2) L_j on average: of what it says above and of
  all that comes before the stage and its own passes, or of its forward and its backward passes.

None of them falls where a load grows. So what comes to sum(L) is at most a given number on all
stages at the least sum(L) if every stage has the least loads behind it that keep that number, which
a program from the last stage on finds (:func:`least_with_limit` does the rest).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from solver.model.arrays import Floats
from solver.model.clock import UNLIMITED, Clock
from solver.model.problem import PartitionProblem
from solver.stages.in_flight import in_flight


def beyond_loads_ns(
    problem: PartitionProblem, flying: int, load_ns: Floats, behind_ns: Floats
) -> Floats:
    """Return what a step takes at least beyond all loads, by what stages say of it.

    Parameters
    ----------
    flying : int
        Forward passes of the stages before their first backward pass, at most.
    load_ns, behind_ns : array of float
        Their loads, and those of all stages behind them.
    """
    batches = problem.microbatches
    if problem.schedule == "gpipe" or not problem.is_training:
        return (batches - 1) * load_ns
    alone: Floats = (batches - (flying + 1) / 2) * load_ns
    if flying >= batches:
        return alone
    return np.maximum(alone, (batches - flying) * load_ns + behind_ns)


def step_of_loads_ns(problem: PartitionProblem, loads_ns: Sequence[int]) -> float:
    """Return what a step takes at least, given the loads of all stages in their order."""
    behind_ns, beyond_ns = 0, 0.0
    for following, load_ns in enumerate(reversed(loads_ns), start=1):
        flying = in_flight(problem, following)
        own = beyond_loads_ns(problem, flying, np.array(load_ns), np.array(behind_ns))
        beyond_ns = max(beyond_ns, float(own))
        behind_ns += load_ns
    return behind_ns + beyond_ns


def least_with_limit(
    least: Callable[[float], float],
    *,
    part: float,
    most: float = math.inf,
    clock: Clock = UNLIMITED,
) -> float:
    """Return a lower bound of the least sum of a limit and what is least within it.

    Parameters
    ----------
    least : callable
        What is least within a limit; it does not grow with it, and is infinite if nothing is.
    part : float
        By what part of the sum the bound may be below it.
    most : float
        Larger sums are of no interest.
    clock : Clock
        When it is over, the bound is what is known by then.

    Returns
    -------
    float
        No more than `most`.

    Notes
    -----
    The sum of limits between two is at least the smaller one and what is least within the larger.
    The interval of which that is least is halved.

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
