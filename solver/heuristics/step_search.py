"""Local search on the step of a pipeline: shift units across borders of stages.

The evaluator judges every plan by simulating its step. That is too slow for thousands of single
moves, so blocks of one, two, four, ... units move at once, large blocks first.
"""

from __future__ import annotations

from typing import Final

from solver.evaluation.evaluate import Evaluation, evaluate
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan
from solver.presolve.instance import Instance

_MOST_EVALUATIONS: Final = 600


def improve_step(
    units: Instance, plan: PartitionPlan, *, target: int = 0, clock: Clock = UNLIMITED
) -> PartitionPlan:
    """Return a plan at least as good as `plan` by the evaluator.

    Blocks are taken from stages in the order of the units, a topological one. `plan` is in order,
    with colocation and pins kept; it may be of several chunks. The search stops when the first
    objective reaches `target`, such as a proven bound; until the clock is over the result does not
    depend on it.
    """
    best = evaluate(units.problem, plan)
    rank = _rank(best)
    left = _MOST_EVALUATIONS
    improved = best.feasible
    while improved:
        improved = False
        for candidate in _neighbours(units, plan):
            if not left or clock.is_over or best.objective[0] <= target:
                return plan
            left -= 1
            found = evaluate(units.problem, candidate)
            if found.feasible and _rank(found) < rank:
                plan, best, rank, improved = candidate, found, _rank(found), True
                break
    return plan


def _rank(evaluation: Evaluation) -> tuple[tuple[int, ...], int]:
    """Return the objective and, to break ties, the sum of squared loads."""
    return evaluation.objective, sum(usage.load_ns**2 for usage in evaluation.usage)


def _neighbours(units: Instance, plan: PartitionPlan) -> list[PartitionPlan]:
    """Return the plans with a block of units shifted to the next or previous stage.

    The last units of a stage have no successors left in it, and the first no predecessors, so no
    edge is reversed. A stage keeps at least one unit.
    """
    members_of: list[list[int]] = [[] for _ in plan.stages]
    for unit, number in enumerate(units.lowered(plan.stage_index)):
        members_of[number].append(unit)
    found: list[PartitionPlan] = []
    size = 1 << max(len(row) for row in members_of).bit_length()
    while size:
        for number, row in enumerate(members_of):
            if size < len(row):
                if number + 1 < len(members_of):
                    found.append(_moved(units, plan, row[-size:], number + 1))
                if number:
                    found.append(_moved(units, plan, row[:size], number - 1))
        size //= 2
    return found


def _moved(
    units: Instance, plan: PartitionPlan, block: list[int], stage_number: int
) -> PartitionPlan:
    target = plan.stages[stage_number]
    names = [units.problem.operators[i].name for unit in block for i in units.members[unit]]
    return PartitionPlan(
        {**plan.assignment, **dict.fromkeys(names, target.device)},
        plan.device_order,
        {**plan.chunks, **dict.fromkeys(names, target.chunk)},
    )
