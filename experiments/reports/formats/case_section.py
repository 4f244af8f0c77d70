"""What a report shows of one case."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, TypeAlias

from experiments.comparison.records import Case, PlannerRow, best_row
from experiments.reports.content.blocks import Block, Code, Folded, Items, Section, Text
from experiments.reports.content.headline import case_name
from experiments.reports.content.plan_tables import device_table
from experiments.reports.content.rows import answers_table, troubles
from experiments.reports.content.steps import steps_table
from experiments.reports.figures.whole_plan import plan_figures, trace_figure
from fx_bridge.presentation.details import PlanDetails, plan_details
from solver import SOLVERS, Device, PartitionPlan, PartitionProblem, SolveLimits
from solver.model.quantities import counted, format_bytes, format_ns

_TRACE: Final = "The pipeline in time, for Perfetto (https://ui.perfetto.dev) and chrome://tracing"

Answer: TypeAlias = tuple[PlannerRow, str | None]
"""A row, and the file of its plan."""


def make_case_section(
    case: Case,
    answers: Sequence[Answer],
    limits: SolveLimits,
    *,
    anchor: str,
    problem_file: str | None,
    trace_file: str | None,
    names_objective: bool,
) -> Section:
    """Return what is shown of one case.

    Parameters
    ----------
    answers : sequence of Answer
        Row of each planner, and the file of its plan.
    problem_file, trace_file : str or None
        Relative to the report.
    names_objective : bool
        Whether the heading names the objective: other cases have another one.
    """
    rows = [row for row, _ in answers]
    objective = f", {', '.join(case.key.objective)}" if names_objective else ""
    content: list[Block] = [
        Items(tuple(("", fact) for fact in _case_facts(case)), kind="facts"),
        *([answers_table(rows, names_case=False)] if rows else []),
        Items(troubles(rows), "Without a feasible plan"),
    ]
    if words := tuple((row.label, row.words) for row in rows if row.words):
        content.append(Folded("In the planners' own words", (Items(words, kind="words"),)))
    content += _searched(case, rows, trace_file)
    if problem_file is not None:
        summary = "Commands that compute it again, in the folder of this report"
        content.append(Folded(summary, (Code(_commands(answers, limits, problem_file)),)))
    return Section(
        title=case_name(case.key) + objective,
        short=case_name(case.key, with_model=False) + objective,
        content=tuple(content),
        anchor=anchor,
        kind="case",
    )


def _searched(case: Case, rows: Sequence[PlannerRow], trace_file: str | None) -> Iterator[Block]:
    """Yield the best plan, the searches, and the other plans, each of them once."""
    best = best_row(rows)
    shown: list[tuple[PartitionPlan, str]] = []
    if case.problem is not None and best is not None and best.plan is not None:
        shown.append((best.plan, best.label))
        yield Section(
            f"The best plan, by {best.label}",
            (
                *plan_figures(plan_details(case.problem, best.plan)),
                *([Text(_TRACE, trace_file)] if trace_file else []),
            ),
        )
    # Searches that prove something come first.
    told = sorted((row for row in rows if len(row.trace) > 1), key=lambda row: row.bound is None)
    yield from map(trace_figure, told[:1])
    if told[1:]:
        yield Folded("Other searches", tuple(map(trace_figure, told[1:])))
    if (steps := steps_table(rows)).rows:
        yield Folded("What each step of the searches took and gained", (steps,))
    for row in rows:
        if case.problem is None or row.plan is None or row is best:
            continue
        summary = f"The plan of {row.label}"
        same = next((label for plan, label in shown if plan == row.plan), None)
        if same is not None:
            yield Folded(f"{summary}: the same as of {same}", ())
            continue
        shown.append((row.plan, row.label))
        details = plan_details(case.problem, row.plan)
        breaks = "" if row.feasible else ", which breaks limits"
        yield Folded(f"{summary}{breaks}", _summary(details))


def _summary(details: PlanDetails) -> tuple[Block, ...]:
    """Return what tells a plan from the best one: all of it would fill most of a report."""
    quotient, *_ = plan_figures(details)
    return replace(quotient, caption="", tables=()), device_table(details)


def _case_facts(case: Case) -> tuple[str, ...]:
    key, problem = case.key, case.problem
    facts = [f"Minimised: {', then '.join(key.objective)}; memory model {key.memory_model}"]
    if problem is None:
        return (*facts, f"The problem could not be made: {case.reason or 'no reason is known'}")
    facts.append(f"Devices: {device_words(problem.devices)}")
    link = problem.interconnect.default
    bandwidth = link.bandwidth_bytes_per_s
    links = "unlimited" if bandwidth is None else f"{format_bytes(bandwidth)}/s"
    links += f" and {format_ns(link.latency_ns)} per transfer"
    own = len(problem.interconnect.links)
    facts.append(f"Links: {links}" + (f", {own} with speeds of their own" if own else ""))
    return (*facts, *_stage_limits(problem))


def _stage_limits(problem: PartitionProblem) -> tuple[str, ...]:
    words: list[str] = []
    if problem.chunks_per_device > 1:
        words.append(f"up to {problem.chunks_per_device} chunks per device")
    if problem.max_devices is not None:
        words.append(f"at most {counted(problem.max_devices, 'device')}")
    if problem.microbatches > 1:
        words.append(f"{problem.microbatches} microbatches by {problem.schedule}")
    if problem.cuts:
        words.append(f"{counted(len(problem.cuts), 'cut')} made by hand")
    return (f"Limits: {', '.join(words)}",) if words else ()


def device_words(devices: Sequence[Device]) -> str:
    """Return devices in words; equal neighbours are counted.

    Examples
    --------
    >>> device_words((Device("a", 10**9), Device("b", 10**9), Device("c")))
    '2 x 1 GB (default), unlimited (default)'
    """
    words: list[str] = []
    for (memory_bytes, name), group in groupby(
        devices, key=lambda device: (device.memory_bytes, device.device_class)
    ):
        count = len(tuple(group))
        words.append(
            (f"{count} x " if count > 1 else "") + f"{format_bytes(memory_bytes)} ({name})"
        )
    return ", ".join(words)


def _commands(answers: Sequence[Answer], limits: SolveLimits, problem_file: str) -> tuple[str, ...]:
    """Return commands for the folder of the report; names of files there are safe."""
    commands: list[str] = []
    for row, _ in answers:
        if row.planner not in SOLVERS:
            continue
        words = ["fxpartition", "solve", problem_file, "--solver", row.planner]
        if limits.time_limit_s is not None:
            words += ["--time-limit", f"{limits.time_limit_s:g}"]
        words += ["--workers", str(limits.worker_count), "--seed", str(row.seed)]
        words += [word for name in row.without for word in ("--without", shlex.quote(name))]
        commands.append(" ".join([*words, *(["--deterministic"] if limits.deterministic else [])]))
    for _, file in answers:
        if file is not None:
            commands.append(f"fxpartition score {file} {problem_file}")
    return tuple(commands)
