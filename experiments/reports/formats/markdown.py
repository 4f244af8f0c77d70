"""A report as one Markdown page: what the HTML page shows, with tables in place of figures."""

from __future__ import annotations

import re
from collections.abc import Iterable

from experiments.reports.content.case_section import CaseSection, PlanView
from experiments.reports.content.explanations import HOW_TO_READ, LIMITS
from experiments.reports.content.headline import Finding
from experiments.reports.content.page import ModelSection, Page
from experiments.reports.content.plan_tables import (
    alive_table,
    arc_table,
    device_table,
    search_table,
    stage_table,
)
from experiments.reports.content.table import Table
from solver.model.quantities import printable


def to_markdown(page: Page) -> str:
    """Return a report as Markdown with the tables of GitHub."""
    lines = [f"# {escape_markdown(page.title)}", ""]
    lines += [*(f"* {_finding(finding)}" for finding in page.headline), ""]
    for comparison in page.comparisons:
        lines += _table(comparison.table)
    lines += ["## Cases", "", *_table(page.overview)]
    for section in page.models:
        lines += _model(section)
    lines += ["## How to read this", ""]
    lines += [
        f"* **{escape_markdown(term)}**: {escape_markdown(text)}" for term, text in HOW_TO_READ
    ]
    lines += ["", *_table(page.planners)]
    lines += ["## What this does not say", "", *_items(LIMITS)]
    lines += ["## Where it ran", "", *_table(page.environment), escape_markdown(page.run)]
    return "\n".join(lines) + "\n"


def _finding(finding: Finding) -> str:
    about = f"**{escape_markdown(finding.about)}**" if finding.about else ""
    return ": ".join(part for part in (about, escape_markdown(finding.text)) if part)


def escape_markdown(text: str) -> str:
    """Return `text` as it must stand in Markdown, table cells included, to read as it is.

    White space becomes single blanks; what a terminal or a browser would obey becomes escapes;
    addresses do not become links.
    """
    shown = printable(" ".join(text.split()))
    escaped = re.sub(r"([\\`*_{}\[\]<>&#|~@])", r"\\\1", shown)
    return escaped.replace("://", r":\//").replace("www.", r"www\.")


def _items(texts: Iterable[str]) -> list[str]:
    # What would begin a list within the list does not.
    starts = (re.sub(r"^(\d*)([-+.)])(?=\s|$)", r"\1\\\2", escape_markdown(text)) for text in texts)
    return [*(f"* {text}" for text in starts), ""]


def _table(table: Table) -> list[str]:
    if not table.rows:
        return []
    rule = "|".join("---" if table.is_text(name) else "---:" for name in table.header)
    lines = [
        *((f"{escape_markdown(table.caption)}:", "") if table.caption else ()),
        f"| {' | '.join(table.header)} |",
        f"|{rule}|",
    ]
    for index, row in enumerate(table.rows):
        cells = [escape_markdown(cell) for cell in row]
        if index in table.marked:
            cells = [f"**{cell}**" if cell else cell for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _model(section: ModelSection) -> list[str]:
    lines = [f"## {escape_markdown(section.name)}", "", *_items(section.facts)]
    for case in section.cases:
        lines += _case(case)
    if section.checks is not None:
        lines += _table(section.checks)
    return lines


def _case(case: CaseSection) -> list[str]:
    lines = [f"### {escape_markdown(case.heading)}", "", *_items(case.facts)]
    if case.answers is not None:
        lines += _table(case.answers)
    if case.troubles:
        lines += ["Without a feasible plan:", ""]
        lines += _items(f"{planner}: {why}" for planner, why in case.troubles)
    if case.words:
        lines += ["In the planners' own words:", ""]
        lines += _items(f"{planner}: {words}" for planner, words in case.words)
    if case.best is not None:
        lines += _plan(case.best, case.trace_file)
    lines += _table(search_table(case.searches))
    if case.steps.rows:
        folded = "<details><summary>What each step of the searches took and gained</summary>"
        lines += [folded, "", *_table(case.steps), "</details>", ""]
    if case.commands:
        lines += ["To compute it again, in the folder of this report:", ""]
        lines += [*(f"    {command}" for command in case.commands), ""]
    return lines


def _plan(view: PlanView, trace_file: str | None) -> list[str]:
    assert view.details is not None
    lines = [f"#### The best plan, by {escape_markdown(view.row.label)}", ""]
    for make in (device_table, stage_table, arc_table, alive_table):
        lines += _table(make(view.details))
    if trace_file is not None:
        lines += [f"The pipeline in time: [{trace_file}]({trace_file}), for Perfetto.", ""]
    return lines
