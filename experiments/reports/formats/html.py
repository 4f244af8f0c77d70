"""Report as one self-contained HTML page.

Names reach the page as escaped text only. A content security policy forbids the page to load
anything, and allows one script, which sorts tables, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Final

from experiments.reports.content.blocks import Block, Code, Folded, Items, Section, Table, Text
from solver.model.text import printable

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'; script-src 'sha256-{digest}'; form-action 'none'; base-uri 'none'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<nav aria-label="Contents">
<details open><summary>Contents</summary>
{contents}
</details>
</nav>
<main>
<h1>{title}</h1>
{content}
</main>
<script>{script}</script>
</body>
</html>
"""
_LONG: Final = 30
"""Characters beyond which a cell is broken into lines."""


def to_html(page: Section) -> str:
    """Return a report as HTML."""
    style, script = (
        files("experiments.reports.formats").joinpath(name).read_text("utf-8")
        for name in ("report.css", "report.js")
    )
    return _PAGE.format(
        title=_shown(page.title),
        style=style,
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        contents=_contents(page.content),
        content="\n".join(_html(block, 1) for block in page.content),
    )


def _shown(text: str) -> str:
    """Escape text, its control and direction characters included."""
    return escape("\n".join(printable(line) for line in text.split("\n")))


def _contents(blocks: Iterable[Block]) -> str:
    entries = "\n".join(
        f'<li><a href="#{block.anchor}">{_shown(block.short)}</a>{_contents(block.content)}</li>'
        for block in blocks
        if isinstance(block, Section) and block.short
    )
    return f"<ul>\n{entries}\n</ul>" if entries else ""


def _html(block: Block, depth: int) -> str:
    """Return a block within `depth` sections."""
    match block:
        case Table():
            return "".join(_table(block)) if block.rows else ""
        case Items():
            return _items(block)
        case Text(text=text, files=files):
            links = ", ".join(f'<a href="{_shown(name)}">{_shown(name)}</a>' for name in files)
            return f"<p>{_shown(text)}{': ' if files else ''}{links}</p>" if text else ""
        case Code():
            return f"<pre>\n{_shown(chr(10).join(block.lines))}\n</pre>"
        case Folded():
            content = "\n".join(_html(each, depth) for each in block.content)
            summary = f"<summary>{_shown(block.title)}</summary>"
            return f"<details{_anchor(block.anchor)}>{summary}\n{content}\n</details>"
        case Section():
            content = "\n".join(_html(each, depth + 1) for each in block.content)
            heading = f"<h{depth + 1}>{_shown(block.title)}</h{depth + 1}>"
            return f"<section{_anchor(block.anchor)}>\n{heading}\n{content}\n</section>"


def _anchor(anchor: str) -> str:
    return f' id="{anchor}"' if anchor else ""


def _items(items: Items) -> str:
    if not items.entries:
        return ""
    lines = "\n".join(
        f"<li>{f'<b>{_shown(about)}</b>: ' if about else ''}{_shown(text)}</li>"
        for about, text in items.entries
    )
    return f"<ul>\n{lines}\n</ul>"


def _table(table: Table) -> Iterator[str]:
    yield '<div class="wide"><table>\n'
    if table.caption:
        yield f"<caption>{_shown(table.caption)}</caption>\n"
    texts = [name in table.text_columns for name in table.header]
    yield "<thead><tr>"
    for name, is_text in zip(table.header, texts, strict=True):
        yield f'<th scope="col"{_kind("text" * is_text)}>{_shown(name)}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for number, row in enumerate(table.rows):
        yield f"<tr{_kind('marked' * (number in table.marked))}>"
        for column, (cell, is_text) in enumerate(zip(row, texts, strict=True)):
            shown = _shown(cell)
            if number < len(table.anchors) and not column:
                shown = f'<a href="#{table.anchors[number]}">{shown}</a>'
            kind = ("text long" if len(cell) > _LONG else "text") if is_text else ""
            yield f"<td{_kind(kind)}>{shown}</td>"
        yield "</tr>\n"
    yield "</tbody>\n</table></div>"


def _kind(kind: str) -> str:
    """Return the attribute of a CSS class; empty without one."""
    return f' class="{kind}"' if kind else ""
