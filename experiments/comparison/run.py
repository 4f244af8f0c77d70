"""Every model, every device set, every planner: one study as plain frozen data.

Whatever fails is a row with its reason; a run ends early only when it is interrupted.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.comparison.planner_row import plan_row
from experiments.comparison.records import (
    DEFAULT_TIME_LIMIT_S,
    OWN_PLANNERS,
    Case,
    CaseKey,
    EquivalenceRow,
    ModelRecord,
    PlannerRow,
    Study,
    best_row,
)
from experiments.console.progress import ProgressLine
from experiments.console.usage import in_options
from experiments.planners.registry import PLANNERS, check_planner
from experiments.planners.steps import check_step
from experiments.planners.task import PlanningTask
from experiments.problems.devices import DeviceSet
from experiments.problems.request import (
    ProblemRequest,
    check_model_request,
    problem_of_graph,
    read_saved_problem,
    requested_device_sets,
    requested_graph,
)
from experiments.processes.environment import environment, peak_rss_bytes
from experiments.zoo.building import (
    LoadedModel,
    ModelSpec,
    build_model,
    capture_model,
    describe_error,
    others_code,
)
from solver import SOLVERS, PartitionProblem, SolveLimits

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """What a comparison runs.

    Parameters
    ----------
    request : ProblemRequest
        What is asked of every problem, but for its devices; what it leaves open, a saved problem
        says itself.
    device_sets : mapping of str to DeviceSet
        Empty derives equal, unequal and roomy devices from each model's size.
    planners : tuple of str
        Empty asks our own, and every peer that answers within seconds.
    limits : SolveLimits
        Of each single answer.
    without : tuple of str
        Steps that planners which prove leave out.
    check_splits : bool
        Split every model that has weights, and check that the split computes the same.
    """

    request: ProblemRequest = field(default_factory=ProblemRequest)
    device_sets: Mapping[str, DeviceSet] = field(default_factory=dict)
    planners: tuple[str, ...] = ()
    limits: SolveLimits = field(default_factory=lambda: SolveLimits(DEFAULT_TIME_LIMIT_S))
    without: tuple[str, ...] = ()
    check_splits: bool = True

    def __post_init__(self) -> None:
        for name in self.planners:
            check_planner(name)
        for name in self.without:
            check_step(name)


def default_planners(*, with_model: bool, recompute: bool = False) -> tuple[str, ...]:
    """Return our own planners and every peer that a problem is for.

    Parameters
    ----------
    with_model : bool
        With those that need the model.
    recompute : bool
        With those that say what runs again.
    """
    peers = [
        name
        for name, spec in PLANNERS.items()
        if name not in SOLVERS
        and (with_model or not spec.needs_model)
        and (recompute or not spec.recomputes)
    ]
    return (*OWN_PLANNERS, *peers)


def run_comparison(
    sources: Sequence[ModelSpec | Path],
    settings: CompareSettings,
    progress: ProgressLine | None = None,
) -> Study:
    """Compare all planners on all models.

    Parameters
    ----------
    sources : sequence of ModelSpec or Path
        A path is a saved problem; it brings its own devices unless `settings` names some.
    settings : CompareSettings
        Planners, devices, objectives and limits, the same for all models.
    progress : ProgressLine, optional
        Shows what is being done; without it the run is silent.
    """
    start_s = time.perf_counter()
    progress = progress or ProgressLine(quiet=True)
    found: list[_Found] = []
    for source in sources:
        name = str(source) if isinstance(source, Path) else source.name
        progress.step(f"{name}: building")
        try:
            if isinstance(source, Path):
                answer = _compare_problem(source, settings, progress)
            else:
                with others_code(f"model {name!r}"):
                    answer = _compare_model(source, settings, progress)
        except Exception as error:
            # A model is other people's code; one that fails must not end the run.
            reason = in_options(describe_error(error))
            answer = _Found(ModelRecord(model=name, reason=reason))
        if answer.record.reason:
            reason = answer.record.reason
            # What is wrong with a file begins with its path.
            progress.done(reason if reason.startswith(name) else f"{name}: {reason}")
        found.append(answer)
        # The next model must not find this one's weights still in memory.
        gc.collect()
    return Study(
        models=tuple(answer.record for answer in found),
        cases=tuple(case for answer in found for case in answer.cases),
        rows=tuple(row for answer in found for row in answer.rows),
        checks=tuple(check for answer in found for check in answer.checks),
        limits=settings.limits,
        environment=environment(),
        wall_time_s=time.perf_counter() - start_s,
        peak_rss_bytes=peak_rss_bytes(),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found of one model."""

    record: ModelRecord
    cases: tuple[Case, ...] = ()
    rows: tuple[PlannerRow, ...] = ()
    checks: tuple[EquivalenceRow, ...] = ()


def _compare_problem(path: Path, settings: CompareSettings, progress: ProgressLine) -> _Found:
    sets: Mapping[str, DeviceSet | None] = settings.device_sets or {"saved": None}
    problems = {
        name: read_saved_problem(path, replace(settings.request, devices=devices))
        for name, devices in sets.items()
    }
    cases = _cases(str(path), problems)
    first = next(iter(problems.values()))
    record = ModelRecord.of_problem(str(path), first, description="saved problem")
    return _Found(record, cases, _ask_all(cases, None, settings, progress))


def _compare_model(spec: ModelSpec, settings: CompareSettings, progress: ProgressLine) -> _Found:
    request = settings.request
    check_model_request(spec.name, request)
    clock = _Clock()
    loaded = build_model(spec)
    build_s = clock.lap_s()
    progress.step(f"{spec.name}: capturing")
    captured = capture_model(loaded, request.capture)
    capture_s = clock.lap_s()
    progress.step(f"{spec.name}: operator graph")
    graph = requested_graph(captured, [*settings.device_sets.values()], request)
    graph_s = clock.lap_s()
    progress.step(f"{spec.name}: device sets")
    sets = settings.device_sets or requested_device_sets(
        graph, request, equal_devices=spec.equal_devices, slack_permille=spec.slack_permille
    )
    problems = {
        name: problem_of_graph(graph, captured, devices, request) for name, devices in sets.items()
    }
    cases = _cases(spec.name, problems)
    rows = _ask_all(cases, (loaded, captured), settings, progress)
    checks: tuple[EquivalenceRow, ...] = ()
    if settings.check_splits and loaded.has_weights:
        checks = _check_splits(loaded, captured, problems, rows, progress)
    record = ModelRecord.of_problem(
        spec.name,
        next(iter(problems.values())),
        description=spec.description,
        has_weights=loaded.has_weights,
        captured_by=captured.how,
        build_s=build_s,
        capture_s=capture_s,
        graph_s=graph_s,
    )
    return _Found(record, cases, rows, checks)


def _cases(model: str, problems: Mapping[str, PartitionProblem]) -> tuple[Case, ...]:
    """Return the cases of a model, one for each problem, which are named by their devices."""
    return tuple(
        Case(CaseKey(model, name, problem.objective, problem.memory_model), problem)
        for name, problem in problems.items()
    )


def _ask_all(
    cases: Sequence[Case],
    model: tuple[LoadedModel, CapturedGraph] | None,
    settings: CompareSettings,
    progress: ProgressLine,
) -> tuple[PlannerRow, ...]:
    loaded, captured = model or (None, None)
    rows: list[PlannerRow] = []
    for case in cases:
        assert case.problem is not None
        task = PlanningTask(case.problem, loaded, captured, settings.without)
        planners = settings.planners or default_planners(
            with_model=model is not None, recompute=case.problem.may_recompute
        )
        for planner in planners:
            progress.step(f"{case.key.model} on {case.key.device_set} devices: {planner}")
            row = plan_row(case.key, task, planner, progress.watched(settings.limits))
            progress.done(f"{case.key.model} on {case.key.device_set} devices: {row.outcome}")
            rows.append(row)
    return tuple(rows)


def _check_splits(
    loaded: LoadedModel,
    captured: CapturedGraph,
    problems: Mapping[str, PartitionProblem],
    rows: Sequence[PlannerRow],
    progress: ProgressLine,
) -> tuple[EquivalenceRow, ...]:
    """Split by the best plan and by greedy's, where feasible, for every case."""
    checked: list[EquivalenceRow] = []
    for key in dict.fromkeys(row.case for row in rows):
        here = [row for row in rows if row.case == key]
        chosen = [best_row(here), *(row for row in here if row.planner == "greedy")]
        picked = {row.planner: row for row in chosen if row is not None and row.feasible}
        for row in picked.values():
            progress.step(f"{loaded.name} on {key.device_set} devices: split by {row.planner}")
            checked.append(_check_split(loaded, captured, problems[key.device_set], row))
    return tuple(checked)


def _check_split(
    loaded: LoadedModel, captured: CapturedGraph, problem: PartitionProblem, row: PlannerRow
) -> EquivalenceRow:
    from fx_bridge.equivalence.check import check_equivalence
    from fx_bridge.split.by_plan import split_by_plan

    assert row.plan is not None
    clock = _Clock()
    try:
        split = split_by_plan(captured, row.plan, problem=problem)
        split_s = clock.lap_s()
        report = check_equivalence(loaded.module, split, loaded.args, loaded.kwargs)
    except Exception as error:
        return EquivalenceRow(row.case, row.planner, False, reason=describe_error(error))
    return EquivalenceRow(
        case=row.case,
        planner=row.planner,
        equal=report.equal,
        max_abs_error=report.max_abs_error,
        split_s=split_s,
        check_s=clock.lap_s(),
        reason="; ".join(str(difference) for difference in report.differences[:3]),
    )


class _Clock:
    """Seconds between laps."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self._last_s = now_s()

    def lap_s(self) -> float:
        last_s, self._last_s = self._last_s, self._now_s()
        return self._last_s - last_s
