"""Comparison of all planners on all models and device sets, with each answer stored at once.

A failure is a row with its reason; only an interruption ends a run early. Cells are answered in
this process, which holds the model, and stored like those of sweeps.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.comparison.plain_data import plain
from experiments.comparison.planner_row import plan_row
from experiments.comparison.records import (
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
from experiments.planners.registry import check_planner, is_own
from experiments.planners.task import PlanningTask
from experiments.problems.devices import DeviceSet
from experiments.problems.request import (
    check_model_request,
    problem_of_graph,
    read_saved_problem,
    requested_device_sets,
)
from experiments.processes.environment import environment, peak_rss_bytes
from experiments.sweep.cases import cell_key, content_key, spelled_out
from experiments.sweep.packing import pack
from experiments.sweep.prepare import BuiltModel
from experiments.sweep.settings import DERIVED
from experiments.sweep.store import PreparedCase, SweepStore, memory_store
from experiments.sweep.versions import versions
from experiments.zoo.building import LoadedModel, ModelSpec, describe_error, others_code
from experiments.zoo.models import is_ours
from solver import PartitionProblem, SolveLimits
from solver.io.json_files import problem_digest, problem_to_json

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


def run_comparison(
    sources: Sequence[ModelSpec | Path],
    settings: CompareSettings,
    progress: ProgressLine | None = None,
    store: SweepStore | None = None,
    *,
    resume: bool = False,
    between: Callable[[Study], object] | None = None,
) -> Study:
    """Compare all planners on all models.

    Parameters
    ----------
    sources : sequence of ModelSpec or Path
        A path is a saved problem, with its own devices unless `settings` names some.
    settings : CompareSettings
        Planners, devices, objectives and limits, the same for all models.
    progress : ProgressLine, optional
        Display of the steps; without it the run is silent.
    store : SweepStore, optional
        Storage of every answer; without it they end with the process.
    resume : bool
        Keep the answers in the store, and add the missing ones.
    between : callable, optional
        Called with the study so far, after each model but the last that added to it.
    """
    progress = progress or ProgressLine(quiet=True)
    with contextlib.nullcontext(store) if store is not None else memory_store() as kept:
        comparison = _Comparison(sources, settings, progress, kept, resume)
        for left in reversed(range(len(sources))):
            is_news = comparison.add(sources[-1 - left])
            # Free this model's weights before the next is built.
            gc.collect()
            if is_news and left and between is not None:
                between(kept.study())
        return replace(kept.study(), peak_rss_bytes=peak_rss_bytes())


class _Comparison:
    def __init__(
        self,
        sources: Sequence[ModelSpec | Path],
        settings: CompareSettings,
        progress: ProgressLine,
        store: SweepStore,
        resume: bool,
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._store = store
        self._resume = resume
        self._versions = versions()
        self._entries: list[tuple[str, str | None]] = []
        self._done: set[str] = set()
        self._problems: dict[str, PartitionProblem] = {}
        self._last_s = time.monotonic()
        self._asked = {
            "models": [_name(source) for source in sources],
            "request": spelled_out(settings.request),
            "devices": spelled_out(settings.device_sets),
            "planners": settings.planners,
            "without": settings.without,
            "limits": _limits_json(settings.limits),
            "seeds": [settings.limits.seed],
        }
        self._key = content_key([self._asked, self._versions])
        if not resume:
            store.forget(self._key)

    def add(self, source: ModelSpec | Path) -> bool:
        """Answer the missing cells of one model; return True if there were any."""
        model = None
        if not isinstance(source, Path):
            model = BuiltModel(source, self._settings.request.capture, self._progress.step)
        cases = self._known(source) or self._prepare(source, model)
        self._problems = {
            case.digest: self._store.problem(case.digest) for case in cases if case.digest
        }
        cells = {
            case.key: () if case.digest is None else tuple(self._cells(case, model))
            for case in cases
        }
        self._entries += [
            (case.key, None if cell is None else cell.key)
            for case in cases
            for cell in cells[case.key] or (None,)
        ]
        self._store.begin(
            self._key,
            self._asked,
            [*environment(), ("sources", self._versions["sources"])],
            self._entries,
        )
        asked = [self._ask(case, cell, model) for case in cases for cell in cells[case.key]]
        checked = [self._check(case, cells[case.key], model) for case in cases]
        return any((*asked, *checked))

    # -- problems -------------------------------------------------------------------------

    def _case_key(self, source: ModelSpec | Path, device_set: str) -> str:
        devices = spelled_out(self._settings.device_sets.get(device_set))
        asked = [_name(source), device_set, devices, self._asked["request"]]
        return content_key([*asked, self._versions])

    def _known(self, source: ModelSpec | Path) -> list[PreparedCase]:
        """Return the stored cases of a model of the zoo, if the store has all of them."""
        if not (self._resume and isinstance(source, ModelSpec) and is_ours(source)):
            return []
        keys = [self._case_key(source, name) for name in self._settings.device_sets or DERIVED]
        known = [case for key in keys if (case := self._store.case(key)) and case.digest]
        return known if len(known) == len(keys) else []

    def _prepare(self, source: ModelSpec | Path, model: BuiltModel | None) -> list[PreparedCase]:
        """Make and store the problems of a model; a failure becomes a case with its reason."""
        name = _name(source)
        request = self._settings.request
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
            return [self._keep_reason(source, in_options(describe_error(error)))]
        digests = {each: problem_digest(problem) for each, problem in problems.items()}
        cases = []
        for each, problem in problems.items():
            key = self._case_key(source, each)
            if model is None or not is_ours(model.spec):
                # Code or file may have changed: another problem is another case.
                key = content_key([key, digests[each]])
            case = CaseKey(name, each, problem.objective, problem.memory_model)
            cases.append(PreparedCase(key, case, digests[each]))
        packed = [pack(problem_to_json(problem)) for problem in problems.values()]
        self._store.add_cases(cases, packed, plain(record))
        return cases

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

    def _keep_reason(self, source: ModelSpec | Path, reason: str) -> PreparedCase:
        """Store the reason for a missing problem."""
        name, request = _name(source), self._settings.request
        # Messages about a file begin with its path already.
        self._progress.done(reason if reason.startswith(name) else f"{name}: {reason}")
        devices = ", ".join(self._settings.device_sets or DERIVED)
        objective, memory = request.objective or ("bottleneck",), request.memory_model
        case = CaseKey(name, devices, objective, memory or "inference")
        kept = PreparedCase(self._case_key(source, devices), case, None, reason)
        self._store.add_cases([kept], [None], None)
        return kept

    # -- cells ----------------------------------------------------------------------------

    def _cells(self, case: PreparedCase, model: BuiltModel | None) -> Iterator[_Cell]:
        """Yield the cells of a case; by default of all planners that suit it."""
        settings = self._settings
        assert case.digest is not None
        problem = self._problems[case.digest]
        planners = settings.planners or default_planners(
            with_model=model is not None, recompute=problem.may_recompute
        )
        for planner in planners:
            spec = check_planner(planner)
            limits = settings.limits
            if not settings.planners and spec.unasked_limit_s < (limits.time_limit_s or math.inf):
                limits = replace(limits, time_limit_s=spec.unasked_limit_s)
            reads = model is not None and (spec.needs_model or spec.uses_model)
            key = cell_key(
                problem=case.digest,
                planner=planner,
                seed=limits.seed,
                without=settings.without if spec.proves else (),
                limits=_limits_json(limits),
                versions=self._versions,
                model={"name": case.case.model} if reads else None,
            )
            yield _Cell(key, planner, limits, reads)

    def _ask(self, case: PreparedCase, cell: _Cell, model: BuiltModel | None) -> bool:
        """Answer and store a missing cell; return False if it was not missing."""
        # The code of a user's planner may have changed.
        is_kept = self._resume and not is_own(cell.planner) and self._store.status(cell.key)
        if cell.key in self._done or is_kept:
            return False
        name = f"{case.case.model} on {case.case.device_set} devices"
        assert case.digest is not None
        task = PlanningTask(self._problems[case.digest], without=self._settings.without)
        if cell.reads_model and model is not None:
            task = replace(task, loaded=model.loaded, captured=model.captured)
        self._progress.step(f"{name}: {cell.planner}")
        with others_code(f"planner {cell.planner!r}"):
            row = plan_row(case.case, task, cell.planner, self._progress.watched(cell.limits))
        self._progress.done(f"{name}: {row.outcome}")
        self._store.add_cell(self._key, cell.key, row, self._lap_s())
        self._done.add(cell.key)
        return True

    def _check(self, case: PreparedCase, cells: Sequence[_Cell], model: BuiltModel | None) -> bool:
        """Check and store the splits by plans of a case; return True if there were any."""
        if model is None or not model.spec.has_weights or self._settings.check_splits == "none":
            return False
        rows = {cell.key: self._store.row(cell.key, case.case) for cell in cells}
        answered = {key: row for key, row in rows.items() if row is not None and row.feasible}
        best = best_row([*answered.values()])
        news = False
        for key, row in answered.items():
            is_asked = self._settings.check_splits == "all" or row is best
            # Changed code may make the same problem and compute something else.
            is_known = is_ours(model.spec) and self._store.has_check(case.key, key)
            if not is_asked or is_known or not model.loaded.has_weights:
                continue
            where = f"{case.case.model} on {case.case.device_set} devices"
            self._progress.step(f"{where}: split by {row.planner}")
            assert case.digest is not None
            problem = self._problems[case.digest]
            check = check_split(model.loaded, model.captured, problem, row)
            self._store.add_check(self._key, case.key, key, check, self._lap_s())
            news = True
        return news

    def _lap_s(self) -> float:
        last_s, self._last_s = self._last_s, time.monotonic()
        return self._last_s - last_s


@dataclass(frozen=True, slots=True)
class _Cell:
    """One planner on one problem."""

    key: str
    planner: str
    limits: SolveLimits
    reads_model: bool


def _name(source: ModelSpec | Path) -> str:
    return str(source) if isinstance(source, Path) else source.name


def _limits_json(limits: SolveLimits) -> dict[str, Any]:
    return {
        "time_limit_s": limits.time_limit_s,
        "workers": limits.workers,
        "deterministic": limits.deterministic,
    }


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
