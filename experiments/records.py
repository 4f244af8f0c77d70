"""What a comparison is asked for and what it finds, as plain frozen data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from experiments.instances import NamedDevices
from solver import (
    PCIE,
    SOLVERS,
    DeviceUsage,
    Interconnect,
    PartitionError,
    PartitionPlan,
    SolveLimits,
    SolveResult,
)

DEFAULT_SOLVERS: Final = ("greedy", "chain", "auto")
EXACT_SOLVERS: Final = ("auto", "cp-sat", "ideal-dp")
"""Those that can prove optima; the first one of a comparison is what baselines are measured by."""
DEFAULT_TIME_LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """What a comparison runs.

    Parameters
    ----------
    device_sets : tuple of NamedDevices
        Empty derives equal and unequal devices from each model's size.
    interconnect : Interconnect
        For device sets that do not bring their own.
    objective : tuple of str
    memory_model : str
    chunks_per_device, max_devices : int or None
        Of every problem; None leaves a saved problem its own, and otherwise means one chunk and
        any number of devices.
    solvers : tuple of str
    limits : SolveLimits
        Of each single solve.
    check_splits : bool
        Split every model that has weights, and check that the split computes the same.
    planner_quality : bool
        Compare with other planners where a specification asks for it.
    """

    device_sets: tuple[NamedDevices, ...] = ()
    interconnect: Interconnect = PCIE
    objective: tuple[str, ...] = ("bottleneck",)
    memory_model: str = "inference"
    chunks_per_device: int | None = None
    max_devices: int | None = None
    solvers: tuple[str, ...] = DEFAULT_SOLVERS
    limits: SolveLimits = field(default_factory=lambda: SolveLimits(DEFAULT_TIME_LIMIT_S))
    check_splits: bool = True
    planner_quality: bool = True

    def __post_init__(self) -> None:
        if not self.solvers:
            raise PartitionError(f"no solver is given; write one of {', '.join(SOLVERS)}")
        for name in self.solvers:
            if name not in SOLVERS:
                raise PartitionError(
                    f"solver {name!r} is unknown; write one of {', '.join(SOLVERS)}"
                )

    @property
    def stage_limits(self) -> tuple[str, ...]:
        """What limits stages, in words."""
        words: list[str] = []
        if self.chunks_per_device not in (None, 1):
            words.append(f"up to {self.chunks_per_device} chunks per device")
        if self.max_devices is not None:
            words.append(f"at most {self.max_devices} devices")
        return tuple(words)

    @property
    def problem_settings(self) -> dict[str, Any]:
        """The settings of a problem, but for its interconnect."""
        return {
            "objective": self.objective,
            "memory_model": self.memory_model,
            "chunks_per_device": self.chunks_per_device or 1,
            "max_devices": self.max_devices,
        }


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One solver's answer for one model on one device set.

    Attributes
    ----------
    solver : str
        The one that was asked.
    answered_by : str
        The method that answered, which ``auto`` picks; empty if none did.
    status : str
        A value of ``SolveStatus``, or ``failed`` when the solver raised.
    objective, bound : tuple of int or None
        One number per objective; `bound` is proven.
    gap : float or None
    bottleneck_ns, latency_ns, transfer_bytes, peak_memory_permille, devices_used : int or None
        Of the plan, also of one that is not feasible; None without a plan.
    feasible : bool
    reason : str
        Why there is no feasible plan, or empty.
    """

    model: str
    device_set: str
    solver: str
    status: str
    objective: tuple[int, ...] | None = None
    bound: tuple[int, ...] | None = None
    gap: float | None = None
    bottleneck_ns: int | None = None
    latency_ns: int | None = None
    transfer_bytes: int | None = None
    peak_memory_permille: int | None = None
    devices_used: int | None = None
    wall_time_s: float = 0.0
    feasible: bool = False
    reason: str = ""
    answered_by: str = ""
    plan: PartitionPlan | None = field(default=None, repr=False, compare=False)
    usage: tuple[DeviceUsage, ...] = field(default=(), repr=False, compare=False)

    @property
    def label(self) -> str:
        """The solver, and in brackets the method that answered if that is another."""
        if self.answered_by in ("", self.solver):
            return self.solver
        return f"{self.solver} ({self.answered_by})"

    @classmethod
    def from_result(
        cls, model: str, device_set: str, solver: str, result: SolveResult
    ) -> ComparisonRow:
        """Return the row of a result of `solver`."""
        judged = result.evaluation
        return cls(
            model=model,
            device_set=device_set,
            solver=solver,
            answered_by=result.solver,
            status=result.status.value,
            objective=result.objective_values,
            bound=result.objective_bounds,
            gap=result.gap,
            bottleneck_ns=None if judged is None else judged.bottleneck_ns,
            latency_ns=None if judged is None else judged.latency_ns,
            transfer_bytes=None if judged is None else judged.transfer_bytes,
            peak_memory_permille=None if judged is None else judged.peak_memory_permille,
            devices_used=None if judged is None else judged.devices_used,
            wall_time_s=result.wall_time_s,
            feasible=judged is not None and judged.feasible,
            reason=result.reason,
            plan=result.plan,
            usage=() if judged is None else judged.usage,
        )


@dataclass(frozen=True, slots=True)
class EquivalenceRow:
    """Whether a model split by one plan computes what the model computes."""

    device_set: str
    solver: str
    equal: bool
    max_abs_error: float | None = None
    split_s: float = 0.0
    check_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlannerRow:
    """What one planner, ours or another's, makes of a model and a device set.

    Attributes
    ----------
    devices : str
        As a person writes them.
    planner : str
    placed_bytes : tuple of int or None
        Weights on each device; None without a plan.
    spilled_bytes : int
        Weights that the planner sends to disk.
    devices_used : int
    bottleneck_ns : int or None
        Of our plans.
    proven : bool
        The answer is proven optimal.
    words : str
        The answer in the planner's own words.
    reason : str
        Why there is no answer, or empty.
    """

    model: str
    devices: str
    planner: str
    placed_bytes: tuple[int, ...] | None = None
    spilled_bytes: int = 0
    devices_used: int = 0
    bottleneck_ns: int | None = None
    proven: bool = False
    wall_time_s: float = 0.0
    words: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """What was measured of one model.

    Attributes
    ----------
    reason : str
        Why the model could not be compared, or empty.
    one_device_bytes : int
        Memory of the whole model on one device under the memory model of the comparison.
    """

    model: str
    description: str = ""
    has_weights: bool = False
    captured_by: str = ""
    build_s: float = 0.0
    capture_s: float = 0.0
    graph_s: float = 0.0
    nodes: int = 0
    operators: int = 0
    edges: int = 0
    weight_bytes: int = 0
    one_device_bytes: int = 0
    device_sets: tuple[NamedDevices, ...] = ()
    rows: tuple[ComparisonRow, ...] = ()
    equivalence: tuple[EquivalenceRow, ...] = ()
    planners: tuple[PlannerRow, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a whole run."""

    settings: CompareSettings
    models: tuple[ModelRecord, ...]
    environment: tuple[tuple[str, str], ...]
    wall_time_s: float
    peak_rss_bytes: int | None = None

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """The rows of all models."""
        return tuple(row for record in self.models for row in record.rows)


def best_row(rows: Sequence[ComparisonRow]) -> ComparisonRow | None:
    """Return the feasible row of least objective; among equals an exact solver's."""
    feasible = [row for row in rows if row.feasible and row.objective is not None]
    return min(
        feasible, key=lambda row: (row.objective, row.solver not in EXACT_SOLVERS), default=None
    )
