"""One planner on one case, with any outcome as a row."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Final

from experiments.comparison.records import CaseKey, PlannerRow
from experiments.comparison.search_trace import SearchTrace
from experiments.planners.registry import check_planner
from experiments.planners.task import PlannerSpec, PlanningTask
from experiments.processes.time_limit import call_within
from experiments.zoo.building import describe_error
from solver import SolveLimits, SolveResult, SolveStatus

_LISTED: Final = 3
"""Violations listed in a row; plans of peers may break a limit at every operator."""


def plan_row(key: CaseKey, task: PlanningTask, planner: str, limits: SolveLimits) -> PlannerRow:
    """Run a planner and return its row; any exception but Ctrl-C becomes the row's reason.

    Parameters
    ----------
    task : PlanningTask
        Only proving planners leave out its steps; heuristics are unchanged baselines.
    limits : SolveLimits
        ``on_progress`` is called at every step, and the row has the steps as its trace.
    """
    start_s = time.perf_counter()
    trace = SearchTrace(limits.on_progress)
    row = PlannerRow(key, planner, "failed", limits.seed)
    spec: PlannerSpec | None = None
    try:
        spec = check_planner(planner)
        row = replace(row, without=task.without if spec.proves else ())
        task = replace(task, without=row.without)
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
    return replace(row, reason=_shortened(answer.result))


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


def _shortened(result: SolveResult) -> str:
    violations = () if result.evaluation is None else result.evaluation.violations
    if len(violations) <= _LISTED:
        return result.reason
    return f"{'; '.join(violations[:_LISTED])}; and {len(violations) - _LISTED} more"
