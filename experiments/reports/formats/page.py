"""Report as a section of blocks, for Markdown and HTML."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from experiments.comparison.records import Case, CaseKey, ModelRecord, PlannerRow, Study, best_row
from experiments.planners.registry import PLANNERS
from experiments.planners.task import PlannerSpec
from experiments.reports.content.blocks import (
    Block,
    Code,
    Folded,
    Items,
    Section,
    Table,
    Text,
    tabulated,
)
from experiments.reports.content.findings import findings
from experiments.reports.content.frontier import frontier_tables
from experiments.reports.content.names import ReportFiles
from experiments.reports.content.rows import answers_table, comparison_table, overview_table
from experiments.reports.content.statistics import comparisons
from solver import SOLVERS, Device, PartitionProblem, SolveLimits
from solver.model.quantities import counted, format_bytes, format_ns, format_seconds

HOW_TO_READ: Final = (
    (
        "One evaluator",
        "it costs every plan, whichever planner found it; no planner is trusted about its own. "
        "Less is better.",
    ),
    (
        "Bound",
        "proven: no plan of the problem is better. Optimal means that bound and objective are "
        "equal; the gap limits the distance of a plan from the best. Only our solvers prove "
        "bounds.",
    ),
    (
        "Ratios",
        "of first objectives; their means are geometric. Better, equal and worse "
        "compare all objectives in their order, as exact integers, where both have plans.",
    ),
    ("Best of the others", "for every case, the best plan of all planners that prove nothing."),
    ("Files of a case", "its problem, its best plan, and the page of that plan."),
    (
        "Same split",
        "the model, split by the plan and called with its example inputs, returns the outputs of "
        "the model.",
    ),
)

LIMITS: Final = (
    "Times of operators come from a roofline of published speeds, unless devices or profiles give "
    "others: nothing here was measured on the devices of the plans.",
    "A proof holds for the given problem: its operators, costs, memory model and limits on "
    "stages. Memory counts tensors, without fragmentation.",
    "Capacities of devices called equal, unequal and roomy follow from the model.",
    "Wall times, and plans that are not proven, may differ in another run; proven objectives do "
    "not.",
)


TITLE: Final = "How plans compare"
MOST_SHOWN: Final = 30
"""Cases with answers on the page."""


def make_report(study: Study, files: ReportFiles) -> Section:
    """Return the page of a study's report."""
    overview = overview_table(study, with_splits=True)
    compared = [comparison_table(each) for each in comparisons(study.rows) if each.compared]
    compared += frontier_tables(study)
    anchors = {case.key: f"case-{number}" for number, case in enumerate(study.cases, 1)}
    anchored = tuple(anchors[case.key] for case in study.cases[:MOST_SHOWN])
    shown = Items(tuple(("", sentence) for sentence in findings(study)))
    return Section(
        TITLE,
        (
            *compared,
            Section("All cases", (replace(overview, anchors=anchored),), "All cases", "all"),
            Section("What they show", (shown,), "What they show", "shown"),
            *_models(study, files, anchors, overview),
            _explanations(study),
        ),
    )


def _models(
    study: Study, files: ReportFiles, anchors: Mapping[CaseKey, str], overview: Table
) -> list[Section]:
    """Return a section for each model, with its cases."""
    records = {record.model: record for record in study.models}
    cases: dict[str, list[Block]] = {name: [] for name in records}
    several = len({case.key.objective for case in study.cases}) > 1
    for case, line in zip(study.cases[:MOST_SHOWN], overview.rows, strict=False):
        of = dict(zip(overview.header, line, strict=True))
        outcome = of["status"]
        if best_row(study.rows_of(case.key)) is not None:
            outcome = f"{of['objective']}, {outcome}, by {of['best plan by']}"
        if several:
            outcome = f"{', '.join(case.key.objective)} {outcome}"
        made = _make_case(case, study, files, anchors[case.key], outcome)
        cases.setdefault(case.key.model, []).append(made)
    left = len(study.cases) - MOST_SHOWN
    rest = [Text(f"{counted(left, 'more case')}: see results.json.")] if left > 0 else []
    return [
        Section(
            name,
            (Text(". ".join((*_model_facts(records.get(name)), ""))[:-1]), *content),
            name,
            f"model-{number}",
        )
        for number, (name, content) in enumerate(cases.items(), 1)
        if content or name in records
    ] + ([Section("More cases", tuple(rest))] if rest else [])


def _model_facts(record: ModelRecord | None) -> tuple[str, ...]:
    if record is None:
        return ()
    if record.reason:
        return (f"Could not be compared: {record.reason.rstrip('.')}",)
    facts = [
        f"{counted(record.operators, 'operator')}, {counted(record.edges, 'edge')}, "
        f"{format_bytes(record.weight_bytes)} of weights, "
        f"{format_bytes(record.one_device_bytes)} on one device"
    ]
    if record.description:
        facts.insert(0, record.description[:1].upper() + record.description[1:])
    if record.captured_by and not record.has_weights:
        facts.append("Planned on the meta device, not run")
    return tuple(facts)


def _explanations(study: Study) -> Section:
    environment = Table(("what", "version"), study.environment, frozenset(("what", "version")))
    return Section(
        "How to read this",
        (
            Items(HOW_TO_READ),
            Folded("What this does not say", (Items(tuple(("", text) for text in LIMITS)),)),
            Folded("Planners that were asked", (_planner_table(study),)),
            Folded("Where it ran", (environment, Text(_run(study)))),
        ),
        "How to read this",
        "reading",
    )


def _planner_table(study: Study) -> Table:
    """Describe the planners asked that are in the registry."""
    asked = dict.fromkeys(row.planner for row in study.rows)
    columns: dict[str, Callable[[PlannerSpec], str]] = {
        "planner": lambda spec: spec.name,
        "what it does": lambda spec: spec.description,
        "where it is from": lambda spec: spec.source,
    }
    return tabulated([PLANNERS[name] for name in asked if name in PLANNERS], columns, text=columns)


def _run(study: Study) -> str:
    limits = study.limits
    unit = "deterministic seconds" if limits.deterministic else "s"
    limit = "No time limit" if limits.time_limit_s is None else None
    text = limit or f"At most {limits.time_limit_s:g} {unit} for each answer"
    seeds = sorted({row.seed for row in study.rows} or {limits.seed})
    text += f", {counted(limits.worker_count, 'worker')}, "
    text += f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    text += f". The whole run took {format_seconds(study.wall_time_s)}"
    if study.peak_rss_bytes is not None:
        text += f" and at most {format_bytes(study.peak_rss_bytes)} of memory"
    return f"{text}."


_LEFT_OUT: Final = ("vs greedy", "vs chain", "transfer", "devices used", "own memory")
"""Columns left to results.json."""
_UNKNOWN: Final = Device("any").device_class


def _make_case(case: Case, study: Study, files: ReportFiles, anchor: str, outcome: str) -> Folded:
    """Return the fold of one case, with its answers and its outcome in a few words."""
    rows = study.rows_of(case.key)
    best = best_row(rows)
    problem, page = files.problems.get(case.key), files.pages.get(case.key)
    plan = next((files.plans.get(at) for at, row in enumerate(study.rows) if row is best), None)
    content: list[Block] = [Text(". ".join(_case_facts(case)) + ".")]
    content += [answers_table(rows, names_case=False).without(_LEFT_OUT)] if rows else []
    if there := tuple(file for file in (problem, plan, page) if file):
        content.append(Text("Files", there))
        if case.host is None:
            content.append(Code(tuple(_commands(rows, study.limits, problem, plan))))
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
    if case.host is not None:
        yield f"Host {case.host}"
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
