"""Ask one planner about one case: whatever comes of it is a row."""

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

_TOLD: Final = 3
"""Violations that a row tells; plans of others may break a limit at every operator."""


def plan_row(key: CaseKey, task: PlanningTask, planner: str, limits: SolveLimits) -> PlannerRow:
    """Ask a planner and return its row.

    Parameters
    ----------
    task : PlanningTask
        Only planners that prove leave out its steps; heuristics are baselines as they are.
    limits : SolveLimits
        ``on_progress`` is told of every step, and the row has them as its trace.

    Returns
    -------
    PlannerRow
        Of whatever happens: what a planner raises is the reason of its row.

    Raises
    ------
    KeyboardInterrupt
        When Ctrl-C ends the search: it makes no row.
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
        # What others wrote has no limit of its own.
        answer = call_within(None if spec.keeps_time else limits.time_limit_s, plan)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Of any class: planners are other people's code.
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
    # That it timed out is the status already.
    return str(error) if isinstance(error, TimeoutError) else describe_error(error)


def _shortened(result: SolveResult) -> str:
    violations = () if result.evaluation is None else result.evaluation.violations
    if len(violations) <= _TOLD:
        return result.reason
    return f"{'; '.join(violations[:_TOLD])}; and {len(violations) - _TOLD} more"
