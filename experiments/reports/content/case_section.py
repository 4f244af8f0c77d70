"""What a report shows of one case, as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from experiments.comparison.records import Case, CaseKey, PlannerRow, best_row
from experiments.reports.content.details import PlanDetails, plan_details
from experiments.reports.content.headline import case_name
from experiments.reports.content.rows import answers_table, troubles
from experiments.reports.content.steps import steps_table
from experiments.reports.content.table import Table
from solver import SOLVERS, Device, PartitionProblem, SolveLimits
from solver.model.quantities import counted, format_bytes, format_ns

Answer: TypeAlias = tuple[PlannerRow, str | None]
"""A row, and the file of its plan."""


@dataclass(frozen=True, slots=True)
class PlanView:
    """One planner's plan.

    Attributes
    ----------
    row : PlannerRow
        The planner's answer.
    details : PlanDetails or None
        None where another planner has the same plan, which `same_as` names.
    same_as : str
        The planner that is shown with the same plan, or empty.
    file : str or None
        Where the plan is.
    """

    row: PlannerRow
    details: PlanDetails | None
    same_as: str = ""
    file: str | None = None


@dataclass(frozen=True, slots=True)
class CaseSection:
    """What is shown of one case.

    Attributes
    ----------
    anchor : str
        Where links lead; safe, and the only one of its name.
    heading, short : str
        With and without the model.
    facts : tuple of str
        Sentences about devices and limits.
    answers : Table or None
        None where no planner answered.
    words, troubles : tuple of (str, str)
        Planner, and what it says; planner, and why it has no feasible plan.
    best : PlanView or None
        The plan with the best value; None where no planner has a feasible one.
    others : tuple of PlanView
        The other plans, in the order of the answers.
    searches : tuple of PlannerRow
        Those that tell how incumbent and bound came closer.
    steps : Table
        What the steps of the searches took and gained; without rows where none tells.
    trace_file : str or None
        The best plan as a pipeline in time.
    commands : tuple of str
        What computes the answers again.
    """

    anchor: str
    key: CaseKey
    heading: str
    short: str
    facts: tuple[str, ...]
    answers: Table | None
    words: tuple[tuple[str, str], ...]
    troubles: tuple[tuple[str, str], ...]
    best: PlanView | None
    others: tuple[PlanView, ...]
    searches: tuple[PlannerRow, ...]
    steps: Table
    trace_file: str | None
    commands: tuple[str, ...]


def make_case_section(
    case: Case,
    answers: Sequence[Answer],
    limits: SolveLimits,
    *,
    anchor: str,
    problem_file: str | None,
    trace_file: str | None,
    names_objective: bool,
) -> CaseSection:
    """Return what is shown of one case.

    Parameters
    ----------
    answers : sequence of Answer
        Row of each planner, and the file of its plan.
    limits : SolveLimits
        Of each answer.
    anchor : str
        Where links to the case lead.
    problem_file, trace_file : str or None
        Relative to the report.
    names_objective : bool
        Whether the heading names the objective: other cases have another one.
    """
    rows = [row for row, _ in answers]
    best, others = _plan_views(case, answers)
    objective = f", {', '.join(case.key.objective)}" if names_objective else ""
    return CaseSection(
        anchor=anchor,
        key=case.key,
        heading=case_name(case.key) + objective,
        short=case_name(case.key, with_model=False) + objective,
        facts=_case_facts(case),
        answers=answers_table(rows, names_case=False) if rows else None,
        words=tuple((row.label, row.words) for row in rows if row.words),
        troubles=troubles(rows),
        best=best,
        others=others,
        # Searches that prove something come first.
        searches=tuple(
            sorted((row for row in rows if len(row.trace) > 1), key=lambda row: row.bound is None)
        ),
        steps=steps_table(rows),
        trace_file=trace_file,
        commands=() if problem_file is None else _commands(answers, limits, problem_file),
    )


def _plan_views(
    case: Case, answers: Sequence[Answer]
) -> tuple[PlanView | None, tuple[PlanView, ...]]:
    """Return the best plan's view and the others', each plan with its details once."""
    if case.problem is None:
        return None, ()
    best = best_row([row for row, _ in answers])
    views: list[PlanView] = []
    shown: list[PlanView] = []
    ordered = sorted(answers, key=lambda answer: answer[0] is not best)
    for row, file in ordered:
        if row.plan is None:
            continue
        same = next((view for view in shown if view.row.plan == row.plan), None)
        if same is not None:
            views.append(PlanView(row, None, same.row.label, file))
            continue
        view = PlanView(row, plan_details(case.problem, row.plan), file=file)
        shown.append(view)
        views.append(view)
    if views and views[0].row is best:
        return views[0], tuple(views[1:])
    return None, tuple(views)


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
