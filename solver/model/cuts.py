"""Hand-made cuts and pinned stages: their meaning, and their violations by a plan.

A *cut* is the name of an operator after which, in the execution order, a stage ends: every
operator up to it is on an earlier stage than every operator after it. Cuts divide the operators
into *blocks*, numbered from 0. ``SplitPoint.END`` of ``torch.distributed.pipelining`` has the same
meaning. Only the execution order counts: an operator that runs early for a late reader (a mask, a
view of a weight) belongs to the block where it runs, and its value is sent. Operators of a
backward pass, whose edges do not order stages, are in no block.

A *pinned stage* is an index in ``PartitionPlan.stages``, the list of non-empty stages.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress

from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import NO_BLOCK


def without_hand_made(problem: PartitionProblem) -> PartitionProblem:
    """Return `problem` relaxed by dropping its cuts and pinned stages."""
    if not problem.is_hand_made:
        return problem
    operators = tuple(
        op if op.stage is None else replace(op, stage=None) for op in problem.operators
    )
    return problem.replace(operators=operators, cuts=())


def positions_of_blocks(problem: PartitionProblem, plan: PartitionPlan) -> list[range]:
    """Return for each block its stages in a plan that keeps the cuts.

    The ranges are disjoint and cover all stages, so any plan with every operator in the range of
    its block keeps the cuts too.
    """
    if not problem.cuts:
        return [range(len(plan.stages))]
    first = [len(plan.stages)] * (len(problem.cuts) + 1)
    index = plan.stage_index
    for op, block in zip(problem.operators, problem.blocks, strict=True):
        if block != NO_BLOCK:
            first[block] = min(first[block], index[op.name])
    first[0] = 0
    return [range(a, b) for a, b in zip(first, [*first[1:], len(plan.stages)], strict=True)]


# -- violations by a plan ---------------------------------------------------------------------


def broken_by(problem: PartitionProblem, plan: PartitionPlan) -> list[str]:
    """Return one sentence for each cut, and each pair of stages with pins, that `plan` breaks."""
    found: list[str] = []
    index = plan.stage_index
    names = [op.name for op in problem.operators]
    is_placed = [block != NO_BLOCK for block in problem.blocks]
    starts = [problem.blocks.index(block) for block in range(1, len(problem.cuts) + 1)]
    for cut, start in zip(problem.cuts, starts, strict=True):
        # On each side of the cut, an operator on the worst stage.
        before = max(compress(names[:start], is_placed), key=index.__getitem__)
        behind = min(compress(names[start:], is_placed[start:]), key=index.__getitem__)
        if index[before] >= index[behind]:
            found.append(
                f"cut after {cut!r}: {before!r} runs up to it and is on "
                f"{plan.stage_of(before)}, {behind!r} runs behind it and is on "
                f"{plan.stage_of(behind)}, which is no later stage"
            )
    elsewhere: dict[tuple[int, int], list[str]] = {}
    for name, stage in problem.stage_pins.items():
        if index[name] != stage:
            elsewhere.setdefault((stage, index[name]), []).append(name)
    for (stage, at), names in elsewhere.items():
        others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        found.append(
            f"operator {names[0]!r}{others} is pinned to stage {stage} but is on stage {at} "
            f"({plan.stages[at]})"
        )
    return found
