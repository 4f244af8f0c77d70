"""A bound of the bottleneck from parts of the graph, each of which may have all devices."""

from __future__ import annotations

import numpy as np

from solver.bounds.parts.subproblem import part_of
from solver.dp.ideal_program import SolveIdeals, can_win
from solver.evaluation.evaluate import evaluate
from solver.evaluation.result import SolveStatus
from solver.model.clock import Clock
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem

_REACHES = (0, 8, 32, 128, 512)
"""How many operators before and after those of a stage are in its parts."""


def part_bound_ns(
    problem: PartitionProblem, plan: PartitionPlan, clock: Clock, solve: SolveIdeals
) -> int:
    """Return a bottleneck that no plan is below, from what surrounds the largest load of one.

    Often a bottleneck is local: a large operator whose value no device can hold besides its
    weights, or the first layers of a network for images, which only some devices can hold. Then
    the best plan of the stages around it, on all devices, is no better than that of the whole; and
    it has few ideals, whatever the rest has. So all orders of devices are regarded at once, with
    transfers and the memory of activations.

    Parameters
    ----------
    problem : PartitionProblem
        One that :func:`~solver.bounds.parts.subproblem.has_parts`.
    plan : PartitionPlan
        A feasible one: the stage with its largest load is the first part; others have what runs
        shortly before and after as well, or the stages around.
    clock : Clock
        When to stop.
    solve : callable
        The program over ideals, for the parts.
    """
    load_ns = {entry.device: entry.load_ns for entry in evaluate(problem, plan).usage}
    # Of devices without operators nothing is part.
    worst = max(plan.device_order, key=load_ns.__getitem__)
    bound_ns = 0
    for kept in _parts(problem, plan, worst):
        if bound_ns >= load_ns[worst] or clock.is_over:
            break
        part = part_of(problem, kept)
        if can_win(part):
            answer = solve(part, clock)
            assert answer.status is not SolveStatus.INFEASIBLE, "the plan, restricted, is one of it"
            bound_ns = max(bound_ns, *(answer.objective_bounds or (0,))[:1])
    return bound_ns


def _parts(problem: PartitionProblem, plan: PartitionPlan, device: str) -> list[frozenset[str]]:
    """Return parts around the stage of a device, the smallest first, without the whole."""
    names = np.array([op.name for op in problem.operators])
    rank_of = {name: rank for rank, name in enumerate(plan.device_order)}
    ranks = np.array([rank_of[plan.assignment[name]] for name in names])
    own = (ranks == rank_of[device]).astype(np.int64)
    found: set[frozenset[str]] = set()
    for reach in _REACHES:
        near = np.convolve(own, np.ones(2 * reach + 1, dtype=np.int64))[reach : reach + len(own)]
        found.add(frozenset(names[near > 0].tolist()))
    for reach in range(1, len(rank_of)):
        found.add(frozenset(names[np.abs(ranks - rank_of[device]) <= reach].tolist()))
    return sorted((part for part in found if len(part) < len(names)), key=len)
