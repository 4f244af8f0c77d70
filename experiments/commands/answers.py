"""Solving, saving and printing for the commands, and their exit codes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

import solver
from experiments.console.exit_codes import EXIT_NO_PLAN, EXIT_TIME_OUT
from experiments.console.output import print_json, print_lines, say, say_written
from experiments.processes.time_limit import call_within
from fx_bridge.presentation.tables import wrapped

if TYPE_CHECKING:
    from experiments.commands.plan_outputs import PlanOutputs
    from experiments.comparison.records import Study
    from experiments.console.progress import ProgressLine
    from solver import Diagnosis, PartitionProblem, SolveLimits, SolveResult


def solve_all(
    problem: PartitionProblem,
    solvers: Sequence[str],
    limits: SolveLimits,
    model: str,
    progress: ProgressLine,
    without: Collection[str] = (),
) -> list[SolveResult]:
    """Solve a problem by each of `solvers` in turn, within one time limit for all.

    The steps in `without` are left out of the last one alone, which the user requested.
    """
    results: list[SolveResult] = []
    shown = progress.watched(limits)
    for name in solvers:
        progress.step(f"{model}: {name}")
        left_out = without if name == solvers[-1] else ()
        left = shown.after(sum(result.wall_time_s for result in results))
        search = functools.partial(solver.solve, problem, left, solver=name, without=left_out)
        results.append(call_within(None, search))
    return results


def finish(
    problem: PartitionProblem,
    results: list[SolveResult],
    limits: SolveLimits,
    outputs: PlanOutputs,
    as_json: bool,
    with_steps: bool = False,
) -> None:
    """Save the plan of the last, requested answer; print all answers; exit by its status.

    With `with_steps` the steps of its search follow; JSON always has them.

    If no plan exists, print the reason, found within the rest of the time limit.
    """
    asked = results[-1]
    # Write the file first: printing ends early if the reader of a pipe stops.
    if asked.objective is not None:
        outputs.write(asked)
    left = limits.after(sum(result.wall_time_s for result in results))
    explain = functools.partial(
        call_within, None, functools.partial(solver.diagnose, problem, left, result=asked)
    )
    if as_json:
        answer = result_json(problem, asked)
        if asked.status is solver.SolveStatus.INFEASIBLE:
            answer["diagnosis"] = diagnosis_json(explain())
        if len(results) > 1:
            answer["baseline"] = result_json(problem, results[0])
        print_json(answer)
    else:
        from fx_bridge.presentation.summary import steps_text, summary

        print(summary(results))
        if with_steps:
            print(f"\n{steps_text(asked.log)}")
    if asked.status is solver.SolveStatus.INFEASIBLE:
        texts = [f"no plan exists: {asked.reason}", *([] if as_json else [explain().text])]
        for line in wrapped(texts):
            say(line)
        raise typer.Exit(EXIT_NO_PLAN)
    if asked.objective is None:
        say(f"no plan found, and none ruled out: {asked.reason}")
        raise typer.Exit(EXIT_TIME_OUT)


def finish_study(study: Study, out: str | None, as_json: bool) -> None:
    """Write the report of a study into the folder `out`, if any, and print the study."""
    from experiments.reports.content.findings import findings
    from experiments.reports.formats.study_json import study_to_json
    from experiments.reports.formats.terminal import study_lines
    from experiments.reports.formats.writing import write_report

    if out is not None:
        for written in write_report(study, out):
            say_written(written)
    if as_json:
        print_json(study_to_json(study))
        return
    print_lines([*study_lines(study), *findings(study)])


def result_json(problem: PartitionProblem, result: SolveResult) -> dict[str, Any]:
    """Return an answer as plain data."""
    plan = None if result.objective is None else result.plan
    evaluation = result.evaluation
    return {
        "status": result.status.value,
        "solver": result.solver,
        "objective": result.objective,
        "objective_bound": result.objective_bound,
        "gap": result.gap,
        "objectives": dict(zip(problem.objective, result.objective_values or (), strict=False)),
        "wall_time_s": result.wall_time_s,
        "reason": result.reason,
        "times_from": dict(problem.times_from),
        "log": [asdict(step) for step in result.log],
        "device_order": [] if plan is None else list(plan.device_order),
        "chunks": None if plan is None else dict(plan.chunks),
        "recomputed": None if plan is None else sorted(plan.recomputed),
        "region_starts": None if plan is None else list(plan.region_starts),
        "assignment": None if plan is None else dict(plan.assignment),
        "devices": [
            {
                "name": usage.device,
                "operators": len(usage.operators),
                "capacity_bytes": usage.capacity_bytes,
                "memory_bytes": usage.memory_bytes,
                "compute_ns": usage.compute_ns,
                "send_ns": usage.send_ns,
                "receive_ns": usage.receive_ns,
                "load_ns": usage.load_ns,
            }
            for usage in (() if evaluation is None else evaluation.usage)
        ],
    }


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as plain data."""
    return {
        "text": diagnosis.text,
        "is_proven": diagnosis.is_proven,
        "conflict": [
            {"kind": type(limit).__name__, **asdict(limit)} for limit in diagnosis.conflict
        ],
        "is_minimal": diagnosis.is_minimal,
        "shortfalls": [
            {**asdict(shortfall), "missing_bytes": shortfall.missing_bytes}
            for shortfall in diagnosis.shortfalls
        ],
        "remedies": [
            {
                "kind": type(remedy.change).__name__,
                **asdict(remedy.change),
                "is_least": remedy.change.is_least,
                "text": remedy.change.text,
            }
            for remedy in diagnosis.remedies
        ],
        "time_ran_out": diagnosis.time_ran_out,
        "wall_time_s": diagnosis.wall_time_s,
    }
