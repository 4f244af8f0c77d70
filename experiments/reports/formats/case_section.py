"""Section of a report on one case."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from experiments.comparison.records import Case, PlannerRow
from experiments.reports.content.blocks import Block, Code, Folded, Text
from experiments.reports.content.rows import answers_table
from experiments.reports.figures.of_study import ShownPlan
from solver import SOLVERS, Device, PartitionProblem, SolveLimits
from solver.model.quantities import counted, format_bytes, format_ns

_LEFT_OUT: Final = ("vs greedy", "vs chain", "transfer", "devices used", "own memory")
"""Columns left to tables/answers.csv."""
_UNKNOWN: Final = Device("any").device_class


def make_case(
    case: Case,
    rows: Sequence[PlannerRow],
    limits: SolveLimits,
    *,
    anchor: str,
    outcome: str,
    shown: ShownPlan | None,
    problem: str | None,
    plan: str | None,
    trace: str | None,
) -> Folded:
    """Return the fold of one case.

    Parameters
    ----------
    rows : sequence of PlannerRow
        Answers to the case.
    outcome : str
        Outcome in a few words.
    shown : ShownPlan or None
        The best plan.
    problem, plan, trace : str or None
        Files relative to the report, if they exist.
    """
    content: list[Block] = [Text(". ".join(_case_facts(case)) + ".")]
    if shown is not None:
        content += shown.figures
    content += [answers_table(rows, names_case=False).without(_LEFT_OUT)] if rows else []
    if shown is not None:
        content.append(Folded("In numbers", (shown.stages, shown.devices)))
    if there := tuple(file for file in (problem, plan, trace) if file):
        content.append(Text("Files", there))
        content.append(Code(tuple(_commands(rows, limits, problem, plan))))
    return Folded(
        f"{case.key.device_set}: {outcome}",
        tuple(content),
        short=case.key.device_set,
        anchor=anchor,
    )


def _case_facts(case: Case) -> Iterator[str]:
    problem = case.problem
    if problem is None:
        yield f"The problem could not be made: {case.reason or 'no reason is known'}"
        return
    link = problem.interconnect.default
    bandwidth = link.bandwidth_bytes_per_s
    links = "unlimited" if bandwidth is None else f"{format_bytes(bandwidth)}/s"
    own = len(problem.interconnect.links)
    yield (
        f"{_device_words(problem.devices)}; links {links}, {format_ns(link.latency_ns)}"
        + (f", {own} with speeds of their own" if own else "")
    )
    if words := ", ".join(_stage_limits(problem)):
        yield f"Limits: {words}"


def _stage_limits(problem: PartitionProblem) -> Iterator[str]:
    if problem.chunks_per_device > 1:
        yield f"up to {problem.chunks_per_device} chunks per device"
    if problem.max_devices is not None:
        yield f"at most {counted(problem.max_devices, 'device')}"
    if problem.microbatches > 1:
        yield f"{problem.microbatches} microbatches by {problem.schedule}"
    if problem.cuts:
        yield f"{counted(len(problem.cuts), 'cut')} made by hand"


def _device_words(devices: Sequence[Device]) -> str:
    """Return devices in words, with counts of equal neighbours and with known classes.

    Examples
    --------
    >>> _device_words((Device("a", 10**9), Device("b", 10**9), Device("c")))
    '2 x 1 GB, unlimited'
    """
    words: list[str] = []
    for (memory_bytes, name), group in groupby(
        devices, key=lambda device: (device.memory_bytes, device.device_class)
    ):
        count = len(tuple(group))
        times, kind = f"{count} x " * (count > 1), f" ({name})" * (name != _UNKNOWN)
        words.append(f"{times}{format_bytes(memory_bytes)}{kind}")
    return ", ".join(words)


def _commands(
    rows: Sequence[PlannerRow], limits: SolveLimits, problem: str | None, plan: str | None
) -> Iterator[str]:
    """Yield commands for the folder of the report, whose file names need no quotes."""
    if plan is not None:
        yield f"fxpartition score {plan} {problem}"
    for row in rows:
        if row.planner not in SOLVERS:
            continue
        words = ["fxpartition", "solve", str(problem), "--solver", row.planner]
        if limits.time_limit_s is not None:
            words += ["--time-limit", f"{limits.time_limit_s:g}"]
        words += ["--workers", str(limits.worker_count), "--seed", str(row.seed)]
        words += [word for name in row.without for word in ("--without", shlex.quote(name))]
        yield " ".join([*words, *(["--deterministic"] if limits.deterministic else [])])
