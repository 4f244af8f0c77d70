"""Recomputed operators of each stage of a plan, in terms of the graph that is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import fx

from fx_bridge.capture.graph import CapturedGraph
from solver import PartitionError, PartitionPlan, PartitionProblem
from solver.model.recomputation import Recomputation, other_regions


@dataclass(frozen=True, slots=True)
class Decisions:
    """The recomputation of one stage, by the names of its operators."""

    regions: Mapping[str, int]  # of each operator in a region with recomputation
    again: frozenset[str]  # the recomputed operators
    random: frozenset[str]  # those of `again` that draw random numbers
    written: Mapping[str, frozenset[str]]
    """Buffers, by node, that some of `again` write: they run again on copies of these."""


def decisions_of(
    captured: CapturedGraph, plan: PartitionPlan, problem: PartitionProblem | None
) -> dict[int, Decisions]:
    """Return the decisions of each stage with recomputation, by its position.

    `problem`, that of the plan, has the regions; without recomputation it is not needed. Raises as
    :func:`problem_with_regions`.
    """
    if not plan.recomputed:
        return {}
    problem = problem_with_regions(captured, plan, problem)
    recomputation = Recomputation(problem, plan.stage_index, plan.recomputed)
    again = {problem.operators[index].name for index in np.flatnonzero(recomputation.again)}
    region_of = {op.name: op.backward.region for op in problem.operators}
    stage_of = plan.stage_index
    regions = {(stage_of[name], region_of[name]) for name in again}
    random = {node.name for node in captured.random_operators}
    found: dict[int, Decisions] = {}
    for stage in sorted({stage for stage, _ in regions}):
        own = frozenset(name for name in again if stage_of[name] == stage)
        found[stage] = Decisions(
            {n: r for n, r in region_of.items() if stage_of[n] == stage and (stage, r) in regions},
            own,
            own & random,
            {n.name: _written_by(captured, n) for n in captured.operators if n.name in own},
        )
    return found


def problem_with_regions(
    captured: CapturedGraph, plan: PartitionPlan, problem: PartitionProblem | None
) -> PartitionProblem:
    """Return the problem, which has the regions of recomputation.

    PartitionError if it is missing or another one, or an operator cannot run again.
    """
    if problem is None:
        what = f"the plan lets {min(plan.recomputed)!r}" if plan.recomputed else "operators"
        raise PartitionError(
            f"{what} run again in the backward pass, and only its problem has what that pass "
            "saves; give problem=, such as result.problem"
        )
    if [op.name for op in problem.operators] != [node.name for node in captured.operators]:
        raise PartitionError(
            "the problem has other operators than the graph; give the one that the plan is for"
        )
    for violation in other_regions(problem, plan):
        raise PartitionError(f"{violation}; give the problem that the plan is for")
    for violation in Recomputation(problem, plan.stage_index, plan.recomputed).violations():
        raise PartitionError(f"{violation}; leave it out of recomputed")
    return problem


def _written_by(captured: CapturedGraph, node: fx.Node) -> frozenset[str]:
    table = captured.storage_table
    written = {storage for storage in table.writes.get(node.name, ()) if storage.kind == "weight"}
    return frozenset(
        read.name
        for read in node.all_input_nodes
        if read.op == "get_attr" and not written.isdisjoint(table.storages[read.name])
    )
