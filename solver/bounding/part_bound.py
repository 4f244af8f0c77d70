"""A bound of the bottleneck from parts of the graph, each of which may have all devices."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from solver.cuts import is_hand_made
from solver.evaluate import evaluate
from solver.ideal_dp import can_win, solve_ideal_dp
from solver.plan import PartitionPlan
from solver.problem import ColocationGroup, Operator, PartitionProblem
from solver.result import SolveLimits, SolveStatus

_REACHES = (0, 8, 32, 128, 512)
"""How many operators before and after those of a stage are in its parts."""


def part_bound_ns(problem: PartitionProblem, plan: PartitionPlan, end_s: float | None) -> int:
    """Return a bottleneck that no plan is below, from what surrounds the largest load of one.

    Often a bottleneck is local: a large operator whose value no device can hold besides its
    weights, or the first layers of a network for images, which only some devices can hold. Then
    the best plan of the stages around it, on all devices, is no better than that of the whole; and
    it has few ideals, whatever the rest has. So all orders of devices are regarded at once, with
    transfers and the memory of activations.

    Parameters
    ----------
    problem : PartitionProblem
        One that :func:`has_parts`.
    plan : PartitionPlan
        A feasible one: the stage with its largest load is the first part; others have what runs
        shortly before and after as well, or the stages around.
    end_s : float or None
        When to stop, on the clock of ``time.perf_counter``.
    """
    load_ns = {entry.device: entry.load_ns for entry in evaluate(problem, plan).usage}
    worst = max(load_ns, key=load_ns.__getitem__)
    bound_ns = 0
    for kept in _parts(problem, plan, worst):
        left_s = None if end_s is None else end_s - time.perf_counter()
        if bound_ns >= load_ns[worst] or (left_s is not None and left_s <= 0):
            break
        part = part_of(problem, kept)
        if can_win(part):
            answer = solve_ideal_dp(part, SolveLimits(left_s, workers=1))
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


def has_parts(problem: PartitionProblem) -> bool:
    """Return whether the best bottleneck of a part is a bound of the whole (:func:`part_of`)."""
    return (
        problem.objective[0] == "bottleneck"
        and problem.memory_model != "training"
        and problem.interconnect.charging != "relayed"
        and problem.chunks_per_device == 1
        and not is_hand_made(problem)
        and not any(op.is_backward for op in problem.operators)
    )


def part_of(problem: PartitionProblem, kept: Collection[str]) -> PartitionProblem:
    """Return the problem on some of its operators, with the bottleneck as its objective.

    Parameters
    ----------
    problem : PartitionProblem
        One that :func:`has_parts`.
    kept : collection of str
        Names of operators.

    Returns
    -------
    PartitionProblem
        Any plan of `problem`, without the other operators, is a plan of it and has no larger load.

    Notes
    -----
    Proof. What is left of every stage runs some of its operators, in the same order, so that the
    quotient graph has some of its paths, and takes no more time. A value is sent to some of the
    stages that it was sent to, and received by some that received it. Memory: a stage reads some of
    its weights and receives some of its values; of storages it holds those of operators that it
    keeps, each from the same operator on, and until the last reader that is kept or, if a reader
    elsewhere is kept, until its end: never longer. A view of a storage that nobody makes any more
    holds nothing, and travels as it did. Pins and limits are the same, and of colocated operators
    those that are kept still are together.
    """
    known = {*kept, *(entry.name for entry in problem.inputs)}
    groups = (
        ColocationGroup(tuple(name for name in group.operators if name in kept), group.reason)
        for group in problem.colocation
    )
    return problem.replace(
        operators=tuple(_within(op, known) for op in problem.operators if op.name in kept),
        colocation=tuple(group for group in groups if len(group.operators) > 1),
        objective=("bottleneck",),
    )


def _within(op: Operator, known: Collection[str]) -> Operator:
    return replace(
        op,
        reads=tuple(name for name in op.reads if name in known),
        alias_of=op.alias_of if op.alias_of in known else None,
    )
