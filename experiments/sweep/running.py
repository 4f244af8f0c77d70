"""Sweep: prepares missing problems, answers missing cells, and stores each answer at once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from experiments.comparison.plain_data import read_row
from experiments.comparison.records import FAILURES, CaseKey, PlannerRow
from experiments.planners.registry import PLANNERS, is_own
from experiments.planners.task import PlannerSpec
from experiments.processes.environment import environment
from experiments.sweep.cases import (
    CaseRequest,
    Cell,
    case_key,
    case_requests,
    cells_of,
    content_key,
    settings_json,
)
from experiments.sweep.limited import WorkerPool
from experiments.sweep.progress import SweepProgress
from experiments.sweep.settings import SweepSettings
from experiments.sweep.sources import ModelSource
from experiments.sweep.store import PreparedCase, SweepStore
from experiments.sweep.versions import versions
from solver import PartitionError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """Outcome of a sweep, with the seconds of this run.

    A case without a problem has no cells, and a reason, by case; cells of equal keys count once.
    Cells are `present` if answered before this run, `done` if by this run, and `failed` without an
    answer, because the planner raised or was ended.
    """

    cases: int
    cells: int
    present: int
    done: int
    failed: int
    by_status: Mapping[str, int]
    reasons: Mapping[str, str]
    wall_time_s: float


class Sweep:
    """One run of a sweep over one file, whose stored answers are not computed again.

    `pool` has the processes that run the jobs. `retry_failed` repeats cells and cases that failed
    or were ended.
    """

    def __init__(
        self,
        settings: SweepSettings,
        store: SweepStore,
        pool: WorkerPool,
        progress: SweepProgress,
        *,
        retry_failed: bool = False,
        specs: Mapping[str, PlannerSpec] = PLANNERS,
    ) -> None:
        self._settings = settings
        self._store = store
        self._pool = pool
        self._progress = progress
        self._retry_failed = retry_failed
        self._specs = specs
        self._versions = versions()

    def run(self) -> SweepSummary:
        """Answer the missing cells; an exception keeps all earlier answers."""
        started_s = time.monotonic()
        prepared = self._prepare()
        cells = tuple(self._cells(prepared))
        once = {cell.key: cell for cell in cells}
        keys_of: dict[CaseKey, list[str | None]] = {}
        for cell in cells:
            keys_of.setdefault(cell.case, []).append(cell.key)
        before = {key: self._store.status(key) for key in once}
        missing = [
            cell
            for key, cell in once.items()
            # The code of a user's planner may have changed.
            if before[key] is None
            or (self._retry_failed and before[key] in FAILURES)
            or is_own(cell.planner)
        ]
        # Workers that have built a model take no other cells, so cells with a model come last.
        missing.sort(key=lambda cell: cell.source is not None)
        settings = settings_json(self._settings)
        sweep_key = content_key([settings, self._versions])
        self._store.begin(
            sweep_key,
            settings,
            [*environment(), ("sources", self._versions["sources"])],
            [
                (case.key, cell_key)
                for case in prepared.values()
                for cell_key in keys_of.get(case.case, [None])
            ],
        )
        self._progress.begin(len(once), len(missing))
        self._answer(sweep_key, missing, started_s)
        statuses = Counter(str(self._store.status(key)) for key in once)
        return SweepSummary(
            cases=len(prepared),
            cells=len(once),
            present=len(once) - len(missing),
            done=len(missing),
            failed=sum(statuses[status] for status in FAILURES),
            by_status=dict(sorted(statuses.items())),
            reasons={
                str(case): prepared[case].reason
                for case in prepared
                if prepared[case].digest is None
            },
            wall_time_s=time.monotonic() - started_s,
        )

    # -- problems -------------------------------------------------------------------------

    def _prepare(self) -> dict[CaseKey, PreparedCase]:
        """Return all cases in order, after preparing the missing ones."""
        prepared: dict[CaseKey, PreparedCase | None] = {}
        missing: list[tuple[ModelSource, list[CaseRequest]]] = []
        for source in self._settings.models:
            unknown: list[CaseRequest] = []
            for request in case_requests(self._settings, source):
                prepared[request.key] = self._known(source, request)
                if prepared[request.key] is None:
                    unknown.append(request)
            if unknown:
                missing.append((source, unknown))
        jobs = (
            ((source, unknown), self._prepare_job(source, unknown)) for source, unknown in missing
        )
        self._progress.prepare(len(missing))
        for (source, unknown), answer in _answers(self._pool, jobs):
            for case in self._keep_cases(source, unknown, answer):
                prepared[case.case] = case
            self._progress.prepared(source.name)
        return {key: case for key, case in prepared.items() if case is not None}

    def _known(self, source: ModelSource, request: CaseRequest) -> PreparedCase | None:
        """Return a stored case, unless it must be prepared again."""
        if source.is_code:
            return None
        key = case_key(source, request, self._versions)
        known = self._store.case(key)
        if known is None or (known.digest is None and self._retry_failed):
            return None
        return known

    def _prepare_job(self, source: ModelSource, requests: Sequence[CaseRequest]) -> dict[str, Any]:
        limits = self._settings.limits
        return {
            "do": "prepare",
            "versions": self._versions,
            "limits": {"seconds": limits.prepare_limit_s, "memory_bytes": limits.memory_limit},
            "source": source.to_json(),
            "cases": [request.to_json() for request in requests],
        }

    def _keep_cases(
        self, source: ModelSource, requests: Sequence[CaseRequest], answer: Mapping[str, Any]
    ) -> list[PreparedCase]:
        made = answer.get("cases")
        if made is None:
            made = [{"reason": _reason(answer)}] * len(requests)
        kept: list[PreparedCase] = []
        for request, found in zip(requests, made, strict=True):
            digest = found.get("digest")
            key = case_key(source, request, self._versions)
            if source.is_code:
                # The code may have changed: another problem is another case.
                key = content_key([key, digest])
            kept.append(PreparedCase(key, request.key, digest, found.get("reason", "")))
        self._store.add_cases(kept, [found.get("problem") for found in made], answer.get("record"))
        return kept

    # -- cells ----------------------------------------------------------------------------

    def _cells(self, prepared: Mapping[CaseKey, PreparedCase]) -> Iterator[Cell]:
        for source in self._settings.models:
            for request in case_requests(self._settings, source):
                digest = prepared[request.key].digest
                if digest is not None:
                    yield from cells_of(
                        self._settings, source, request, digest, self._specs, self._versions
                    )

    def _answer(self, sweep_key: str, cells: Sequence[Cell], last_s: float) -> None:
        """Answer cells and store each at once, with the time since the one before (`last_s`)."""
        jobs = ((cell, self._cell_job(cell)) for cell in cells)
        for cell, answer in _answers(self._pool, jobs):
            row = _row(cell, answer)
            now_s = time.monotonic()
            self._store.add_cell(sweep_key, cell.key, row, now_s - last_s)
            last_s = now_s
            self._progress.done(row)

    def _cell_job(self, cell: Cell) -> dict[str, Any]:
        limits = self._settings.limits
        seconds = limits.clock_limit_s
        if cell.source is not None:
            # For building and capturing the model.
            seconds += limits.prepare_limit_s
        return {
            "do": "plan",
            "versions": self._versions,
            "limits": {"seconds": seconds, "memory_bytes": limits.memory_limit},
            "request": cell.request.to_json(),
            "problem": self._store.packed_problem(cell.digest),
            "digest": cell.digest,
            "source": None if cell.source is None else cell.source.to_json(),
            "planner": cell.planner,
            "without": list(cell.without),
            "solve": {
                "time_limit_s": limits.time_limit_s,
                "workers": limits.workers,
                "seed": cell.seed,
                "deterministic": limits.deterministic,
            },
        }


def _row(cell: Cell, answer: Mapping[str, Any]) -> PlannerRow:
    if "row" in answer:
        return read_row(answer["row"], cell.case, f"the answer of {cell.planner}")
    ended = answer.get("ended", {"status": "failed"})
    return PlannerRow(
        case=cell.case,
        planner=cell.planner,
        status=ended["status"],
        seed=cell.seed,
        without=cell.without,
        wall_time_s=ended.get("wall_time_s", 0.0),
        peak_rss_bytes=ended.get("peak_rss_bytes"),
        reason=_reason(answer),
    )


def _reason(answer: Mapping[str, Any]) -> str:
    return str(answer["error"] if "error" in answer else answer["ended"]["reason"])


def _answers(
    pool: WorkerPool, jobs: Iterable[tuple[T, Mapping[str, Any]]]
) -> Iterator[tuple[T, dict[str, Any]]]:
    """Run jobs, at most `pool.width` submitted at a time, and yield answers as they arrive."""
    waiting = iter(jobs)
    pending = {pool.submit(job): asked for asked, job in islice(waiting, pool.width)}
    while pending:
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            answer = future.result()
            if "refused" in answer:
                raise PartitionError(answer["refused"])
            yield pending.pop(future), answer
        free = pool.width - len(pending)
        pending |= {pool.submit(job): asked for asked, job in islice(waiting, free)}
