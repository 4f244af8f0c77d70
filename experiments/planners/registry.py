"""Registry of planners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from experiments.planners.balancers import BALANCERS, UNIFORM_PLANNERS
from experiments.planners.device_maps import DEVICE_MAP_PLANNERS
from experiments.planners.own import is_own, own_planner
from experiments.planners.random_plans import RANDOM_PLANNERS
from experiments.planners.recompute_peers import RECOMPUTE_PLANNERS
from experiments.planners.solvers import SOLVER_PLANNERS
from experiments.planners.steps import check_known
from experiments.planners.task import PlannerSpec
from experiments.planners.torch_partitioner import TORCH_PLANNERS

PLANNERS: Final[Mapping[str, PlannerSpec]] = {
    spec.name: spec
    for spec in (
        *SOLVER_PLANNERS,
        *BALANCERS,
        *RANDOM_PLANNERS,
        *UNIFORM_PLANNERS,
        *DEVICE_MAP_PLANNERS,
        *RECOMPUTE_PLANNERS,
        *TORCH_PLANNERS,
    )
}
"""Planners by name: the solvers of this project first, then the peers."""


def check_planner(name: object) -> PlannerSpec:
    """Return the planner of that name, or of an import string.

    Raises
    ------
    PartitionError
        If there is none, with close matches.
    """
    if isinstance(name, str) and is_own(name):
        return own_planner(name)
    return PLANNERS[check_known(name, PLANNERS, "planner")]
