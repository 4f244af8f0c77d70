"""The planners that can be named."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from experiments.planners.deepspeed import DEEPSPEED_PLANNERS
from experiments.planners.device_maps import DEVICE_MAP_PLANNERS
from experiments.planners.pipedream import PIPEDREAM_PLANNERS
from experiments.planners.random_plans import RANDOM_PLANNERS
from experiments.planners.solvers import SOLVER_PLANNERS
from experiments.planners.task import PlannerSpec
from experiments.planners.torch_partitioner import TORCH_PLANNERS
from experiments.planners.torchgpipe import TORCHGPIPE_PLANNERS
from experiments.planners.uniform import UNIFORM_PLANNERS
from solver import PartitionError
from solver.model.checks import did_you_mean

PLANNERS: Final[Mapping[str, PlannerSpec]] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            *SOLVER_PLANNERS,
            *PIPEDREAM_PLANNERS,
            *DEEPSPEED_PLANNERS,
            *TORCHGPIPE_PLANNERS,
            *UNIFORM_PLANNERS,
            *RANDOM_PLANNERS,
            *TORCH_PLANNERS,
            *DEVICE_MAP_PLANNERS,
        )
    }
)
"""By name: the solvers of this project first, then the peers."""


def check_planner(name: object) -> PlannerSpec:
    """Return the planner of that name.

    Raises
    ------
    PartitionError
        If there is none, with the names that come close.
    """
    if isinstance(name, str) and name in PLANNERS:
        return PLANNERS[name]
    hint = did_you_mean(name, PLANNERS, f"write one of {', '.join(PLANNERS)}")
    raise PartitionError(f"planner {name!r} is unknown; {hint}")
