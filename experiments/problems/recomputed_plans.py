"""Problems behind plan files with recomputation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from solver import Device, PartitionPlan, PartitionProblem, problem_from_digraph
from solver.model.recomputation import with_regions

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


def problem_of_plan(captured: CapturedGraph, plan: PartitionPlan) -> PartitionProblem | None:
    """Return a problem for a plan with recomputation; None for other plans.

    The problem adds the tensors that backward passes save and the recomputable operators, which
    depend on the model alone, not on devices and costs. The regions are those of the plan, or the
    model's layers if it has none. Refuses a model of which no weight is trained.
    """
    from fx_bridge.digraph import to_digraph
    from fx_bridge.options import Training

    if not plan.recomputed:
        return None
    problem = problem_from_digraph(
        to_digraph(captured, training=Training(), colocation=False),
        [Device(name) for name in plan.device_order],
        memory_model="training",
        recompute="auto",
    )
    return with_regions(problem, plan)
