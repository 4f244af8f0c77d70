"""Plans of which only the file is at hand, in which operators may run again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from solver import (
    Device,
    PartitionError,
    PartitionPlan,
    PartitionProblem,
    problem_from_digraph,
)

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


def problem_of_plan(
    captured: CapturedGraph, plan: PartitionPlan, *, regions: Sequence[str] = ()
) -> PartitionProblem | None:
    """Return a problem that `plan` is a plan of, if something runs again; else None.

    It has what no plan says: the regions in which operators run again. These are those of the
    model, whatever devices and costs the plan was made with.

    Parameters
    ----------
    regions : sequence of str
        The modules that the plan was made with as regions, if it was not with the model's layers.

    Raises
    ------
    PartitionError
        If nothing of the model is trained, so that nothing runs again; or if there are regions
        for a plan in which nothing does.
    """
    from fx_bridge.digraph import to_digraph
    from fx_bridge.options import Training

    if not plan.recomputed:
        if regions:
            raise PartitionError(
                f"--regions names {regions[0]!r}, but nothing runs again under this plan; leave it "
                "out"
            )
        return None
    return problem_from_digraph(
        to_digraph(captured, training=Training(regions=regions), colocation=False),
        [Device(name) for name in plan.device_order],
        memory_model="training",
        recompute="auto",
    )
