"""Comparison of all planners on all models and device sets, in this process.

A failure is a row with its reason; only an interruption ends a run early.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.comparison.built_models import BuiltModel
from experiments.comparison.planner_row import plan_row
from experiments.comparison.records import (
    Case,
    CaseKey,
    EquivalenceRow,
    ModelRecord,
    PlannerRow,
    Study,
    best_row,
)
from experiments.comparison.settings import CompareSettings, default_planners
from experiments.console.progress import ProgressLine
from experiments.console.usage import in_options
from experiments.planners.registry import check_planner
from experiments.planners.task import PlanningTask
from experiments.problems.devices import DeviceSet
from experiments.problems.instances import DERIVED
from experiments.problems.request import (
    check_model_request,
    problem_of_graph,
    read_saved_problem,
    requested_device_sets,
)
from experiments.processes.environment import environment, peak_rss_bytes
from experiments.zoo.building import LoadedModel, ModelSpec, describe_error, others_code
from solver import PartitionProblem
from solver.io.json_files import problem_digest

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


def run_comparison(
    sources: Sequence[ModelSpec | Path],
    settings: CompareSettings,
    progress: ProgressLine | None = None,
    *,
    between: Callable[[Study], object] | None = None,
) -> Study:
    """Compare all planners on all models.

    A source that is a path is a saved problem, with its own devices unless `settings` names some.
    Without `progress` the run is silent. `between` is called with the study so far, after each
    model but the last.
    """
    comparison = _Comparison(settings, progress or ProgressLine(quiet=True))
    for left in reversed(range(len(sources))):
        comparison.add(sources[-1 - left])
        # Free this model's weights before the next is built.
        gc.collect()
        if left and between is not None:
            between(comparison.study())
    return comparison.study()


class _Comparison:
    def __init__(self, settings: CompareSettings, progress: ProgressLine) -> None:
        self._settings = settings
        self._progress = progress
        self._started_s = time.monotonic()
        self._records: list[ModelRecord] = []
        self._cases: list[Case] = []
        self._rows: list[PlannerRow] = []
        self._checks: list[EquivalenceRow] = []

    def study(self) -> Study:
        """Return the answers so far."""
        return Study(
            models=tuple(self._records),
            cases=tuple(self._cases),
            rows=tuple(self._rows),
            checks=tuple(self._checks),
            limits=self._settings.limits,
            environment=environment(),
            wall_time_s=time.monotonic() - self._started_s,
            peak_rss_bytes=peak_rss_bytes(),
        )

    def add(self, source: ModelSpec | Path) -> None:
        """Answer the cases of one model, and check its splits."""
        name, request, model = str(source), self._settings.request, None
        if not isinstance(source, Path):
            name = source.name
            model = BuiltModel(source, request.capture, self._progress.step)
        try:
            if model is None:
                problems = _saved_problems(Path(name), self._settings)
            else:
                check_model_request(name, request)
                problems = self._problems_of(model)
            first = next(iter(problems.values()))
            if model is None:
                record = ModelRecord.of_problem(name, first, description="saved problem")
            else:
                record = model.record(first)
        except Exception as error:
            self._keep_reason(name, in_options(describe_error(error)))
            return
        self._records.append(record)
        for device_set, problem in problems.items():
            key = CaseKey(name, device_set, problem.objective, problem.memory_model)
            case = Case(key, problem, digest=problem_digest(problem), host=request.host)
            self._cases.append(case)
            asked = self._asked(problem, model)
            rows = [self._answer(case, problem, planner, model) for planner in asked]
            self._rows += rows
            if model is not None and request.host is None:
                self._check(problem, rows, model)

    def _problems_of(self, model: BuiltModel) -> dict[str, PartitionProblem]:
        """Return the problem of a model on every set of devices, given or derived."""
        request, device_sets = self._settings.request, self._settings.device_sets
        graph = model.graph([*device_sets.values()], request)
        self._progress.step(f"{model.spec.name}: device sets")
        sets = device_sets or requested_device_sets(
            graph,
            request,
            equal_devices=model.spec.equal_devices,
            slack_permille=model.spec.slack_permille,
        )
        return {
            name: problem_of_graph(graph, model.captured, devices, request)
            for name, devices in sets.items()
        }

    def _keep_reason(self, name: str, reason: str) -> None:
        # Messages about a file begin with its path already.
        self._progress.done(reason if reason.startswith(name) else f"{name}: {reason}")
        request = self._settings.request
        devices = ", ".join(self._settings.device_sets or DERIVED)
        objective, memory = request.objective or ("bottleneck",), request.memory_model
        self._records.append(ModelRecord(name, reason=reason))
        self._cases.append(
            Case(CaseKey(name, devices, objective, memory or "inference"), None, reason)
        )

    def _asked(self, problem: PartitionProblem, model: BuiltModel | None) -> tuple[str, ...]:
        """Return the planners of a case; by default all that suit it."""
        return self._settings.planners or default_planners(
            with_model=model is not None,
            recompute=problem.may_recompute,
            host=self._settings.request.host is not None,
        )

    def _answer(
        self, case: Case, problem: PartitionProblem, planner: str, model: BuiltModel | None
    ) -> PlannerRow:
        spec, limits = check_planner(planner), self._settings.limits
        limit_s = math.inf if limits.time_limit_s is None else limits.time_limit_s
        if not self._settings.planners and spec.unasked_limit_s < limit_s:
            limits = replace(limits, time_limit_s=spec.unasked_limit_s)
        task = PlanningTask(problem, without=self._settings.without, host=case.host)
        if model is not None and (spec.needs_model or spec.uses_model):
            task = replace(task, loaded=model.loaded, captured=model.captured)
        name = case.key.place
        self._progress.step(f"{name}: {planner}")
        with others_code(f"planner {planner!r}"):
            row = plan_row(case.key, task, planner, self._progress.watched(limits))
        self._progress.done(f"{name}: {row.outcome}")
        return row

    def _check(
        self, problem: PartitionProblem, rows: Sequence[PlannerRow], model: BuiltModel
    ) -> None:
        """Check the splits by the plans of a case that the settings ask for."""
        which, best = self._settings.check_splits, best_row(rows)
        if which == "none" or not model.loaded.has_weights:
            return
        for row in rows:
            if row is best or (which == "all" and row.feasible):
                self._progress.step(f"{row.case.place}: split by {row.planner}")
                self._checks.append(check_split(model.loaded, model.captured, problem, row))


def _saved_problems(path: Path, settings: CompareSettings) -> dict[str, PartitionProblem]:
    sets: Mapping[str, DeviceSet | None] = settings.device_sets or {"saved": None}
    return {
        name: read_saved_problem(path, replace(settings.request, devices=devices))
        for name, devices in sets.items()
    }


def check_split(
    loaded: LoadedModel, captured: CapturedGraph, problem: PartitionProblem, row: PlannerRow
) -> EquivalenceRow:
    """Compare a model with its split by the plan of an answer."""
    from fx_bridge.equivalence.check import check_equivalence
    from fx_bridge.split.by_plan import split_by_plan

    assert row.plan is not None
    started_s = time.perf_counter()
    try:
        with others_code(f"model {loaded.name!r}"):
            split = split_by_plan(captured, row.plan, problem=problem)
            split_s = time.perf_counter() - started_s
            report = check_equivalence(loaded.module, split, loaded.args, loaded.kwargs)
    except Exception as error:
        return EquivalenceRow(row.case, row.planner, False, reason=describe_error(error))
    return EquivalenceRow(
        case=row.case,
        planner=row.planner,
        equal=report.equal,
        max_abs_error=report.max_abs_error,
        split_s=split_s,
        check_s=time.perf_counter() - started_s - split_s,
        reason="; ".join(str(difference) for difference in report.differences[:3]),
    )
