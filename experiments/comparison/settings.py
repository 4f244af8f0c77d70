"""Settings of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from experiments.comparison.records import DEFAULT_TIME_LIMIT_S, OWN_PLANNERS
from experiments.planners.registry import PLANNERS, check_planner
from experiments.planners.steps import check_step
from experiments.problems.devices import DeviceSet
from experiments.problems.request import ProblemRequest
from solver import SOLVERS, SolveLimits

SplitChecks: TypeAlias = Literal["best", "all", "none"]


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """Settings of a comparison.

    `request` has the options of every problem except its devices; unset ones keep those of a saved
    problem. Without `device_sets` equal, unequal and roomy devices are derived from each model's
    size; without `planners` our own are asked, and every suitable peer. Proving planners leave out
    the steps `without`. Models with weights are compared with their splits by the best plan of each
    case, or by all feasible plans.
    """

    request: ProblemRequest = field(default_factory=ProblemRequest)
    device_sets: Mapping[str, DeviceSet] = field(default_factory=dict)
    planners: tuple[str, ...] = ()
    limits: SolveLimits = field(default_factory=lambda: SolveLimits(DEFAULT_TIME_LIMIT_S))
    without: tuple[str, ...] = ()
    check_splits: SplitChecks = "best"

    def __post_init__(self) -> None:
        for name in self.planners:
            check_planner(name)
        for name in self.without:
            check_step(name)


def default_planners(
    *, with_model: bool, recompute: bool = False, host: bool = False
) -> tuple[str, ...]:
    """Return our own planners and all suitable peers.

    Those that need the model, and recomputation rules, are included on request. With `host`, they
    are those for problems with a host.
    """
    names = (*OWN_PLANNERS, *(name for name in PLANNERS if name not in SOLVERS))
    return tuple(
        name
        for name in names
        if (with_model or not PLANNERS[name].needs_model)
        and (recompute or not PLANNERS[name].recomputes)
        and PLANNERS[name].host in ("either", "with" if host else "without")
    )
