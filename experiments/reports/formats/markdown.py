"""Report as Markdown."""

from __future__ import annotations

import re

from experiments.reports.content.blocks import Block, Code, Folded, Items, Section, Table, Text
from solver.model.text import printable


def to_markdown(page: Section) -> str:
    """Return a report as Markdown with the tables of GitHub."""
    return "\n".join(_lines(page, 1)).rstrip("\n") + "\n"


def escape_markdown(text: str) -> str:
    """Escape `text` for Markdown, table cells included.

    White space becomes single blanks, control characters become escapes, and addresses do not
    become links.
    """
    shown = printable(" ".join(text.split()))
    escaped = re.sub(r"([\\`*_{}\[\]<>&#|~@])", r"\\\1", shown)
    return escaped.replace("://", r":\//").replace("www.", r"www\.")


def _lines(block: Block, depth: int) -> list[str]:
    """Return the lines of a block whose heading has `depth` hashes."""
    match block:
        case Table():
            return _table(block)
        case Items():
            return _items(block)
        case Text(text=text, files=files):
            links = ", ".join(f"[{file}]({file})" for file in files)
            return [escape_markdown(text) + (f": {links}" if files else ""), ""] if text else []
        case Code():
            return [*(f"    {line}" for line in block.lines), ""]
        case Folded():
            content = [line for each in block.content for line in _lines(each, depth)]
            # Markdown between HTML tags is still Markdown.
            summary = f"<summary>{escape_markdown(block.title)}</summary>"
            return [f"<details>{summary}", "", *content, "</details>", ""]
        case Section():
            content = [line for each in block.content for line in _lines(each, depth + 1)]
            return [f"{'#' * depth} {escape_markdown(block.title)}", "", *content]


def _items(items: Items) -> list[str]:
    lines = []
    for about, text in items.entries:
        parts = (f"**{escape_markdown(about)}**" if about else "", escape_markdown(text))
        # Escape a marker that would begin a nested list.
        line = re.sub(r"^(\d*)([-+.)])(?=\s|$)", r"\1\\\2", ": ".join(filter(None, parts)))
        lines.append(f"* {line}")
    return [*lines, ""] if lines else []


def _table(table: Table) -> list[str]:
    if not table.rows:
        return []
    rule = "|".join("---" if name in table.text_columns else "---:" for name in table.header)
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
