"""A sweep: prepares what is not prepared, does the cells that are not done, keeps each at once."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from experiments.comparison.plain_data import read_row
from experiments.comparison.records import FAILURES, CaseKey, PlannerRow
from experiments.planners.own import is_own
from experiments.planners.registry import PLANNERS
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
from experiments.sweep.executors import JobRunner
from experiments.sweep.progress import SweepProgress
from experiments.sweep.settings import SweepSettings
from experiments.sweep.sources import ModelSource
from experiments.sweep.store import PreparedCase, SweepStore
from experiments.sweep.versions import versions
from experiments.zoo.building import describe_error
from solver import PartitionError

T = TypeVar("T")

_STEP_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """What became of the cells of a sweep.

    Attributes
    ----------
    cases, cells : int
        Of the sweep; a case without a problem has no cells, and cells of equal keys are one.
    present : int
        Cells that were done before this run.
    done : int
        Cells that this run did.
    failed : int
        Cells that have no answer, because the planner raised or was ended.
    by_status : mapping of str to int
        All cells.
    reasons : mapping of str to str
        Why a case has no problem, by the case.
    wall_time_s : float
        Of this run.
    """

    cases: int
    cells: int
    present: int
    done: int
    failed: int
    by_status: Mapping[str, int]
    reasons: Mapping[str, str]
    wall_time_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return asdict(self)


class Sweep:
    """One run of a sweep over one file.

    Parameters
    ----------
    store : SweepStore
        Where answers are kept, and what is there is not done again.
    runner : JobRunner
        Does the jobs, here or on a cluster.
    retry_failed : bool
        Do again what failed, was ended, or could not be prepared.
    """

    def __init__(
        self,
        settings: SweepSettings,
        store: SweepStore,
        runner: JobRunner,
        progress: SweepProgress,
        *,
        retry_failed: bool = False,
        specs: Mapping[str, PlannerSpec] = PLANNERS,
    ) -> None:
        self._settings = settings
        self._store = store
        self._runner = runner
        self._progress = progress
        self._retry_failed = retry_failed
        self._specs = specs
        self._versions = versions()

    def run(self) -> SweepSummary:
        """Do what is missing.

        Raises
        ------
        PartitionError
            If workers cannot be started, are of other versions, or are gone. What was done by
            then is kept.
        KeyboardInterrupt
            The same.
        """
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
            # A planner of a person's own may answer otherwise by now.
            if before[key] is None or self._again(before[key]) or is_own(cell.planner)
        ]
        # Workers that have built a model take no other cells, so those that need one come last.
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
                _words(case): prepared[case].reason
                for case in prepared
                if prepared[case].digest is None
            },
            wall_time_s=time.monotonic() - started_s,
        )

    # -- problems -------------------------------------------------------------------------

    def _prepare(self) -> dict[CaseKey, PreparedCase]:
        """Return all cases in their order, after preparing those that never were."""
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
        for (source, unknown), answer in _answers(self._runner, jobs):
            for case in self._keep_cases(source, unknown, answer):
                prepared[case.case] = case
            self._progress.prepared(source.name)
        return {key: case for key, case in prepared.items() if case is not None}

    def _known(self, source: ModelSource, request: CaseRequest) -> PreparedCase | None:
        """Return a case that was prepared, unless it is to be prepared again."""
        if source.is_code:
            return None
        key = case_key(source, request, self._versions)
        known = self._store.case(key)
        if known is None or (known.digest is None and self._retry_failed):
            return None
        return known

    def _prepare_job(self, source: ModelSource, requests: Sequence[CaseRequest]) -> str:
        limits = self._settings.limits
        return json.dumps(
            {
                "do": "prepare",
                "versions": self._versions,
                "limits": {
                    "seconds": limits.prepare_limit_s,
                    "memory_bytes": limits.memory_limit,
                },
                "source": source.to_json(),
                "cases": [request.to_json() for request in requests],
            }
        )

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
                # The code may be other code by now: cases of another problem are others.
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

    def _again(self, status: str | None) -> bool:
        return self._retry_failed and status in FAILURES

    def _answer(self, sweep_key: str, cells: Sequence[Cell], last_s: float) -> None:
        """Do cells, and keep each when it is done; the sweep has taken time since `last_s`."""
        jobs = ((cell, self._cell_job(cell)) for cell in cells)
        for cell, answer in _answers(self._runner, jobs):
            row = _row(cell, answer)
            now_s = time.monotonic()
            self._store.add_cell(sweep_key, cell.key, row, now_s - last_s)
            last_s = now_s
            self._progress.done(row)

    def _cell_job(self, cell: Cell) -> str:
        limits = self._settings.limits
        seconds = limits.clock_limit_s
        if cell.source is not None:
            # It builds and captures the model first.
            seconds += limits.prepare_limit_s
        return json.dumps(
            {
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
        )


def _row(cell: Cell, answer: Mapping[str, Any]) -> PlannerRow:
    """Return what a job says of its cell."""
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
    """Return why a job has no answer."""
    return str(answer["error"] if "error" in answer else answer["ended"]["reason"])


def _words(case: CaseKey) -> str:
    return f"{case.model} on {case.device_set}, {','.join(case.objective)}, {case.memory_model}"


def _answers(
    runner: JobRunner, jobs: Iterable[tuple[T, str]]
) -> Iterator[tuple[T, dict[str, Any]]]:
    """Run jobs, a few more at a time than run at once; return each answer when it is there."""
    waiting = iter(jobs)
    pending: dict[Future[str], T] = {}
    more = True
    while more or pending:
        while more and len(pending) < runner.width():
            job = next(waiting, None)
            if job is None:
                more = False
                break
            pending[runner.submit(job[1])] = job[0]
        finished, _ = wait(pending, timeout=_STEP_S, return_when=FIRST_COMPLETED)
        runner.check()
        for future in finished:
            yield pending.pop(future), _answer_of(runner, future)


def _answer_of(runner: JobRunner, future: Future[str]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(future.result())
    except PartitionError:
        raise
    except runner.lost as error:
        return {"ended": {"status": "killed", "reason": describe_error(error)}}
    except Exception as error:
        raise PartitionError(
            f"a worker cannot run cells: {describe_error(error)}; see that it has this release"
        ) from error
    if "refused" in answer:
        raise PartitionError(answer["refused"])
    return answer
