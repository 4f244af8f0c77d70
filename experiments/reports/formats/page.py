"""A report as a section of blocks, which Markdown and HTML show alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from experiments.comparison.records import CaseKey, ModelRecord, Study
from experiments.planners.registry import PLANNERS
from experiments.planners.task import PlannerSpec
from experiments.reports.content.blocks import Block, Items, Section, Table, Text, tabulated
from experiments.reports.content.comparisons import comparison_table
from experiments.reports.content.explanations import HOW_TO_READ, LIMITS
from experiments.reports.content.frontier import frontiers
from experiments.reports.content.headline import headline
from experiments.reports.content.names import ReportFiles
from experiments.reports.content.rows import overview_table
from experiments.reports.content.statistics import comparisons
from experiments.reports.figures.whole_plan import comparison_figure, memory_against_time_figure
from experiments.reports.formats.case_section import Answer, make_case_section
from solver.model.quantities import MISSING, counted, format_bytes, format_seconds

TITLE: Final = "How plans compare"


def make_page(study: Study, files: ReportFiles) -> Section:
    """Return a study's report."""
    anchors, models = _models(study, files)
    compared: list[Block] = []
    for comparison in comparisons(study.rows):
        if any(versus.ratios for versus in comparison.compared):
            compared.append(comparison_figure(comparison))
        if comparison.compared:
            compared.append(comparison_table(comparison))
    compared += map(memory_against_time_figure, frontiers(study))
    overview = replace(overview_table(study), anchors=anchors)
    environment = Table(("what", "version"), study.environment, frozenset(("what", "version")))
    run = Text(_run(study))
    return Section(
        TITLE,
        (
            Items(headline(study), kind="headline"),
            *compared,
            Section("All cases", (overview,), "All cases", "cases"),
            *models,
            Section(
                "How to read this",
                (Items(HOW_TO_READ), _planner_table(study)),
                "How to read this",
                "reading",
                "reading",
            ),
            Section(
                "What this does not say",
                (Items(tuple(("", text) for text in LIMITS)),),
                "What this does not say",
                "limits",
            ),
            Section("Where it ran", (environment, run), "Where it ran", "environment"),
        ),
    )


def _models(study: Study, files: ReportFiles) -> tuple[tuple[str, ...], list[Section]]:
    """Return the anchors of all cases, and a section for each model."""
    answers: dict[CaseKey, list[Answer]] = {}
    for index, row in enumerate(study.rows):
        answers.setdefault(row.case, []).append((row, files.plans.get(index)))
    records = {record.model: record for record in study.models}
    names = dict.fromkeys((*records, *(case.key.model for case in study.cases)))
    several = len({case.key.objective for case in study.cases}) > 1
    sections: dict[str, list[Section]] = {name: [] for name in names}
    numbers = {name: number for number, name in enumerate(names, start=1)}
    anchors: list[str] = []
    for case in study.cases:
        model = case.key.model
        anchors.append(f"model-{numbers[model]}-case-{len(sections[model]) + 1}")
        sections[model].append(
            make_case_section(
                case,
                answers.get(case.key, ()),
                study.limits,
                anchor=anchors[-1],
                problem_file=files.problems.get(case.key),
                trace_file=files.traces.get(case.key),
                names_objective=several,
            )
        )
    return tuple(anchors), [
        Section(
            title=name,
            content=(
                Items(tuple(("", fact) for fact in _model_facts(records.get(name))), kind="facts"),
                _check_table(study, name),
                *sections[name],
            ),
            short=name,
            anchor=f"model-{numbers[name]}",
            kind="model",
        )
        for name in names
    ]


def _model_facts(record: ModelRecord | None) -> tuple[str, ...]:
    if record is None:
        return ()
    if record.reason:
        return (f"Could not be compared: {record.reason}",)
    facts = [record.description[:1].upper() + record.description[1:]] if record.description else []
    facts.append(
        f"{counted(record.operators, 'operator')}, {counted(record.edges, 'edge')}, "
        f"{format_bytes(record.weight_bytes)} of weights, "
        f"{format_bytes(record.one_device_bytes)} on one device"
    )
    if record.captured_by:
        facts.append(
            f"Captured ({record.captured_by}) in {format_seconds(record.capture_s)}, operator "
            f"graph in {format_seconds(record.graph_s)}"
        )
        if not record.has_weights:
            facts.append("On the meta device, without weights: planned, not run")
    return tuple(facts)


def _check_table(study: Study, model: str) -> Table:
    return tabulated(
        [check for check in study.checks if check.case.model == model],
        {
            "devices": lambda check: check.case.device_set,
            "split by": lambda check: check.planner,
            "computes the same": lambda check: "yes" if check.equal else f"NO: {check.reason}",
            "largest error": lambda check: (
                MISSING if check.max_abs_error is None else f"{check.max_abs_error:g}"
            ),
            "split": lambda check: format_seconds(check.split_s),
            "check": lambda check: format_seconds(check.check_s),
        },
        text=("devices", "split by", "computes the same"),
        caption="Splits compared with the model",
    )


def _planner_table(study: Study) -> Table:
    """Return what the planners are that were asked, as far as they are known here."""
    asked = dict.fromkeys(row.planner for row in study.rows)
    columns: dict[str, Callable[[PlannerSpec], str]] = {
        "planner": lambda spec: spec.name,
        "what it does": lambda spec: spec.description,
        "where it is from": lambda spec: spec.source,
    }
    known = [PLANNERS[name] for name in asked if name in PLANNERS]
    return tabulated(known, columns, text=columns, caption="Planners that were asked")


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
