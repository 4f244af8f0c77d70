"""Plain frozen data of a study.

A *study* is the result of ``compare`` or of a sweep: cases, each one problem for the planners, and
a row for every planner's answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from experiments.problems.instances import one_device_bytes
from solver import (
    PartitionPlan,
    PartitionProblem,
    SolveLimits,
    SolveResult,
    SolveStatus,
    evaluate,
    problem_to_digraph,
)
from solver.evaluation.evaluate import Evaluation
from solver.evaluation.result import StepRecord
from solver.model.quantities import format_gap, format_seconds, format_value

OWN_PLANNERS: Final = ("greedy", "chain", "auto")
EXACT_PLANNERS: Final = ("auto", "cp-sat", "ideal-dp")
"""Planners that can prove optima; the first one of a study is the reference of its ratios."""
FAILURES: Final = ("failed", "timed out", "out of memory", "killed")
"""Statuses of answers that another run may change."""
DEFAULT_TIME_LIMIT_S: Final = 30.0
_MEASURED: Final = (
    "bottleneck_ns",
    "latency_ns",
    "transfer_bytes",
    "peak_memory_permille",
    "devices_used",
)


class CaseKey(NamedTuple):
    """Identity of a case in its study."""

    model: str
    device_set: str
    objective: tuple[str, ...]
    memory_model: str

    @property
    def place(self) -> str:
        """Model and devices in words."""
        return f"{self.model} on {self.device_set} devices"

    def __str__(self) -> str:
        return f"{self.place}, {','.join(self.objective)}, {self.memory_model}"


@dataclass(frozen=True, slots=True)
class Case:
    """One problem for the planners, or the reason for its absence.

    `digest` is that of the exact problem; empty if not computed. `host` is a host beside the
    devices of the problem, as ``--host`` takes it.
    """

    key: CaseKey
    problem: PartitionProblem | None = field(default=None, repr=False, compare=False)
    reason: str = ""
    digest: str = ""
    host: str | None = None


@dataclass(frozen=True, slots=True)
class SearchPoint:
    """One moment of a search: incumbent and bound of the current objective."""

    elapsed_s: float
    objective_name: str
    incumbent: int | None
    bound: int | None


@dataclass(frozen=True, slots=True)
class PlannerRow:
    """One planner's answer to one case.

    `status` is a value of ``SolveStatus``; ``spills`` if weights, `spilled_bytes` of them, go to
    disk; ``failed`` if the planner raised; ``timed out``, ``out of memory`` or ``killed`` if it was
    ended. `seed` is 0 if the answer depends on none, and `without` names the steps left out of the
    search.

    `objective` and the proven `bound` have one number per objective; `gap` is as in
    :class:`~solver.evaluation.result.SolveResult`. The figures from `bottleneck_ns` to
    `devices_used` are of the plan, feasible or not, and None with a host. `feasible` says that
    the evaluator finds no violation in it, `reason` why there is no such plan.

    `wall_time_s` is of the whole call, and `peak_rss_bytes` of the planner's process, if it did
    nothing else. `answered_by` is the method that ``auto`` picks; `words` the answer in the
    planner's own terms, such as a device map. `trace` has incumbents and bounds over time, `log`
    the time and gain of each step.
    """

    case: CaseKey
    planner: str
    status: str
    seed: int = 0
    without: tuple[str, ...] = ()
    objective: tuple[int, ...] | None = None
    bound: tuple[int, ...] | None = None
    gap: float | None = None
    bottleneck_ns: int | None = None
    latency_ns: int | None = None
    transfer_bytes: int | None = None
    peak_memory_permille: int | None = None
    devices_used: int | None = None
    wall_time_s: float = 0.0
    peak_rss_bytes: int | None = None
    feasible: bool = False
    reason: str = ""
    answered_by: str = ""
    words: str = ""
    spilled_bytes: int = 0
    trace: tuple[SearchPoint, ...] = field(default=(), repr=False, compare=False)
    log: tuple[StepRecord, ...] = field(default=(), repr=False, compare=False)
    plan: PartitionPlan | None = field(default=None, repr=False, compare=False)

    @property
    def asked(self) -> str:
        """Name of the planner with the steps left out."""
        left_out = f" without {', '.join(self.without)}" if self.without else ""
        return f"{self.planner}{left_out}"

    @property
    def label(self) -> str:
        """Name of the planner, with the method that answered in brackets if it differs."""
        if self.answered_by in ("", self.planner):
            return self.asked
        return f"{self.asked} ({self.answered_by})"

    @property
    def outcome(self) -> str:
        """The result in one line of text."""
        words = f"{self.label} {self.status}"
        if self.objective is not None:
            name = self.case.objective[0]
            words += f", {name} {format_value(name, self.objective[0])}"
            words += f", gap {format_gap(self.gap)}"
        words += f", {format_seconds(self.wall_time_s)}"
        return f"{words}: {self.reason}" if self.reason else words

    def with_result(
        self, result: SolveResult[PartitionPlan, Any, Any], trace: tuple[SearchPoint, ...] = ()
    ) -> PlannerRow:
        """Return the row with a judged result, and with its old time."""
        judged = result.evaluation
        measured = {}
        if isinstance(judged, Evaluation):
            measured = {name: getattr(judged, name) for name in _MEASURED}
        return replace(
            self,
            status=result.status.value,
            objective=rounded_up(result.objective_values),
            bound=rounded_up(result.objective_bounds),
            gap=result.gap,
            feasible=judged is not None and judged.feasible,
            reason=result.reason,
            answered_by=result.solver,
            trace=trace,
            log=result.log,
            plan=result.plan,
            **measured,
        )

    def result(self, problem: PartitionProblem) -> SolveResult:
        """Return the answer as the result of a search, its plan judged anew."""
        evaluation = None if self.plan is None else evaluate(problem, self.plan)
        return SolveResult(
            self.label,
            SolveStatus(self.status),
            self.plan,
            evaluation,
            self.bound,
            self.wall_time_s,
            self.reason,
            self.log,
        )


def rounded_up(values: Sequence[Any] | None) -> tuple[int, ...] | None:
    """Return values as integers; times with a host are fractions."""
    return None if values is None else tuple(map(math.ceil, values))


@dataclass(frozen=True, slots=True)
class EquivalenceRow:
    """Comparison of a model with its split by one plan."""

    case: CaseKey
    planner: str
    equal: bool
    max_abs_error: float | None = None
    split_s: float = 0.0
    check_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """Measurements of one model; `reason` says why it was not compared.

    A model without weights can be planned, not run. `captured_by` is the method of capture; empty
    for a saved problem. `one_device_bytes` is the memory of the whole model on one device under the
    memory model of its first case.
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
    reason: str = ""

    @classmethod
    def of_problem(cls, model: str, problem: PartitionProblem, **measured: Any) -> ModelRecord:
        """Return the record of a model with the sizes of its first problem."""
        graph = problem_to_digraph(problem)
        return cls(
            model,
            nodes=graph.number_of_nodes(),
            operators=len(problem.operators),
            edges=graph.number_of_edges(),
            weight_bytes=sum(weight.size_bytes for weight in problem.weights.values()),
            one_device_bytes=one_device_bytes(problem),
            **measured,
        )


@dataclass(frozen=True, slots=True)
class Study:
    """Result of a comparison or a sweep.

    There is a record for each requested model, captured or not; cases are grouped by model; there
    is a row for each planner, case and seed. `checks` compare split models with their originals.
    `limits` are those of each answer, `environment` the versions of the software, and the last two
    of the whole study and this process.
    """

    models: tuple[ModelRecord, ...]
    cases: tuple[Case, ...]
    rows: tuple[PlannerRow, ...]
    checks: tuple[EquivalenceRow, ...]
    limits: SolveLimits
    environment: tuple[tuple[str, str], ...]
    wall_time_s: float
    peak_rss_bytes: int | None = None

    def rows_of(self, key: CaseKey) -> tuple[PlannerRow, ...]:
        """Return the answers to a case."""
        return tuple(row for row in self.rows if row.case == key)


def best_row(rows: Sequence[PlannerRow]) -> PlannerRow | None:
    """Return the feasible row of least objective; among equals an exact planner's."""
    feasible = [row for row in rows if row.feasible and row.objective is not None]
    return min(
        feasible, key=lambda row: (row.objective, row.planner not in EXACT_PLANNERS), default=None
    )
