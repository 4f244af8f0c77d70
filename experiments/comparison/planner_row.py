"""One planner on one case, with any outcome as a row."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from experiments.comparison.records import CaseKey, PlannerRow, SearchPoint, rounded_up
from experiments.planners.registry import check_planner
from experiments.planners.task import PlannerSpec, PlanningTask
from experiments.processes.time_limit import call_within
from experiments.zoo.building import describe_error
from solver import PartitionError, PartitionPlan, Progress, SolveLimits, SolveResult, SolveStatus


class SearchTrace:
    """Recorder of the progress of a search, for ``SolveLimits.on_progress``.

    A method without progress leaves only the final point. Every progress is passed on to `then`.
    The clock is `now_s`, since successive methods each count time from their own start.
    """

    def __init__(
        self,
        then: Callable[[Progress], None] | None = None,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._then = then
        self._now_s = now_s
        self._start_s = now_s()
        self._points: list[SearchPoint] = []

    def __call__(self, progress: Progress) -> None:
        """Record a moment; solvers call this from their own threads."""
        self._add(progress.objective_name, progress.incumbent, progress.bound)
        if self._then is not None:
            self._then(progress)

    def finish(
        self, result: SolveResult[PartitionPlan, Any, Any], objectives: tuple[str, ...]
    ) -> tuple[SearchPoint, ...]:
        """Return all points, the last of them the answer for the last objective reached."""
        bounds = rounded_up(result.objective_bounds) or ()
        values = rounded_up(result.objective_values) or ()
        reached = max(len(bounds), 1) - 1
        self._add(
            objectives[reached],
            values[reached] if values else None,
            bounds[reached] if bounds else None,
        )
        return tuple(self._points)

    def _add(self, objective: str, incumbent: int | None, bound: int | None) -> None:
        last = self._points[-1] if self._points else None
        if last is not None and last.objective_name == objective:
            # Incumbent and bound of an objective are monotone.
            incumbents = [value for value in (incumbent, last.incumbent) if value is not None]
            incumbent = min(incumbents, default=None)
            bounds = [value for value in (bound, last.bound) if value is not None]
            bound = max(bounds, default=None)
            if (incumbent, bound) == (last.incumbent, last.bound):
                return
        elapsed_s = self._now_s() - self._start_s
        self._points.append(SearchPoint(elapsed_s, objective, incumbent, bound))


_LISTED: Final = 3
"""Violations listed in a row; plans of peers may break a limit at every operator."""


def plan_row(key: CaseKey, task: PlanningTask, planner: str, limits: SolveLimits) -> PlannerRow:
    """Run a planner and return its row; any exception but Ctrl-C becomes the row's reason.

    Only proving planners leave out the steps of the task; heuristics are unchanged baselines. At
    every step ``on_progress`` of the limits is called; the row has the steps as its trace.
    """
    start_s = time.perf_counter()
    trace = SearchTrace(limits.on_progress)
    row = PlannerRow(key, planner, "failed", limits.seed)
    spec: PlannerSpec | None = None
    try:
        spec = check_planner(planner)
        row = replace(row, without=task.without if spec.proves else ())
        task = replace(task, without=row.without)
        _check_host(spec, task)
        plan = partial(spec.plan, task, replace(limits, on_progress=trace))
        # Foreign planners do not observe the limit themselves.
        answer = call_within(None if spec.keeps_time else limits.time_limit_s, plan)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Planners are foreign code.
        return replace(
            row,
            status=_status_of(error),
            wall_time_s=time.perf_counter() - start_s,
            reason=_reason_of(error, spec),
        )
    row = replace(
        row,
        status="spills" if answer.spilled_bytes else SolveStatus.UNKNOWN.value,
        wall_time_s=time.perf_counter() - start_s,
        reason=answer.reason,
        words=answer.words,
        spilled_bytes=answer.spilled_bytes,
    )
    if answer.result is None:
        return row
    row = row.with_result(answer.result, trace.finish(answer.result, task.problem.objective))
    # The plan of a rule has no times of loads, so that it alone would cost something else.
    kept = None if spec.host == "with" else row.plan
    return replace(row, plan=kept, reason=_shortened(answer.result))


def _check_host(spec: PlannerSpec, task: PlanningTask) -> None:
    if spec.host == ("with" if task.host is None else "without"):
        words = "plans without a host" if task.host else "plans with a host alone"
        raise PartitionError(f"planner {spec.name!r} {words}; write others, or --host")


def _status_of(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return "out of memory" if isinstance(error, MemoryError) else "failed"


def _reason_of(error: BaseException, spec: PlannerSpec | None) -> str:
    if isinstance(error, ImportError) and spec is not None and spec.extra is not None:
        return (
            f"needs the extra {spec.extra!r} ({error}); "
            f'install it: pip install "fxpartition[{spec.extra}]"'
        )
    # The status already has the timeout.
    return str(error) if isinstance(error, TimeoutError) else describe_error(error)


def _shortened(result: SolveResult[PartitionPlan, Any, Any]) -> str:
    violations = () if result.evaluation is None else result.evaluation.violations
    if len(violations) <= _LISTED:
        return result.reason
    return f"{'; '.join(violations[:_LISTED])}; and {len(violations) - _LISTED} more"
