"""Plans of which only the file is at hand, in which operators may run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from solver import Device, PartitionPlan, PartitionProblem, problem_from_digraph
from solver.model.recomputation import with_regions

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


def problem_of_plan(captured: CapturedGraph, plan: PartitionPlan) -> PartitionProblem | None:
    """Return a problem that `plan` is a plan of, if something runs again; else None.

    It has what no plan says: what backward passes save, and which operators may run again. These
    are those of the model, whatever devices and costs the plan was made with; the regions are those
    of the plan, or the model's layers if it does not say them.

    Raises
    ------
    PartitionError
        If nothing of the model is trained, so that nothing runs again.
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
