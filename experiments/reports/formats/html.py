"""A report as one self-contained HTML page: no scripts, nothing from elsewhere.

Names reach the page as escaped text alone, and a content security policy in the page forbids
scripts and whatever else a page can load. Only figures that
:mod:`experiments.reports.figures.svg` drew are put in as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Final

from experiments.reports.content.blocks import (
    Block,
    Code,
    Figure,
    Folded,
    Items,
    Section,
    Table,
    Text,
)
from solver.model.text import printable

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{content}
</main>
</body>
</html>
"""
_LONG: Final = 30
"""From this number of characters on a cell is broken into lines."""


def to_html(page: Section) -> str:
    """Return a report as HTML."""
    parts = [f"<h1>{_shown(page.title)}</h1>"]
    sections = [block for block in page.content if isinstance(block, Section)]
    parts += [_html(block, 1) for block in page.content if not isinstance(block, Section)]
    parts += [f'<nav aria-label="Contents">{_contents(sections)}</nav>']
    parts += [_html(section, 1) for section in sections]
    style = files("experiments.reports.formats").joinpath("report.css").read_text("utf-8")
    return _PAGE.format(title=_shown(page.title), style=style, content="\n".join(parts))


def _shown(text: str) -> str:
    """Return text escaped, without what turns its direction or is no text."""
    return escape("\n".join(printable(line) for line in text.split("\n")))


def _contents(sections: Iterable[Block]) -> str:
    entries = "\n".join(
        f'<li><a href="#{section.anchor}">{_shown(section.short)}</a>'
        f"{_contents(section.content)}</li>"
        for section in sections
        if isinstance(section, Section) and section.short
    )
    return f"<ul>\n{entries}\n</ul>" if entries else ""


def _html(block: Block, depth: int) -> str:
    """Return a block within `depth` sections."""
    match block:
        case Table():
            return "".join(_table(block)) if block.rows else ""
        case Items():
            return _items(block)
        case Figure():
            numbers = (
                _html(Folded(f"{each.caption}, in numbers", (each,)), depth)
                for each in block.tables
            )
            return (
                f'<figure class="{block.name}"><figcaption><b>{_shown(block.title)}.</b> '
                f"{_shown(block.caption)}</figcaption>{block.draw()}</figure>\n{''.join(numbers)}"
            )
        case Text(text=text, file=file):
            link = f': <a href="{_shown(file)}">{_shown(file)}</a>' if file else ""
            return f"<p>{_shown(text)}{link}</p>"
        case Code():
            return f"<pre>\n{_shown(chr(10).join(block.lines))}\n</pre>"
        case Folded():
            content = "\n".join(_html(each, depth) for each in block.content)
            return f"<details><summary>{_shown(block.summary)}</summary>\n{content}\n</details>"
        case Section():
            content = "\n".join(_html(each, depth + 1) for each in block.content)
            anchor = f' id="{block.anchor}"' if block.anchor else ""
            heading = f"<h{depth + 1}>{_shown(block.title)}</h{depth + 1}>"
            return f"<section{_kind(block.kind)}{anchor}>\n{heading}\n{content}\n</section>"


def _items(items: Items) -> str:
    if not items.entries:
        return ""
    lines = "\n".join(
        f"<li{_kind('group' * (not text))}>"
        + ": ".join(filter(None, (f"<b>{_shown(about)}</b>" if about else "", _shown(text))))
        + "</li>"
        for about, text in items.entries
    )
    title = f"<p>{_shown(items.title)}:</p>\n" if items.title else ""
    return f"{title}<ul{_kind(items.kind)}>\n{lines}\n</ul>"


def _table(table: Table) -> Iterator[str]:
    yield '<div class="wide"><table>\n'
    if table.caption:
        yield f"<caption>{_shown(table.caption)}</caption>\n"
    texts = [table.is_text(name) for name in table.header]
    yield "<thead><tr>"
    for name, is_text in zip(table.header, texts, strict=True):
        yield f'<th scope="col"{_kind("text" * is_text)}>{_shown(name)}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for number, row in enumerate(table.rows):
        yield f"<tr{_kind('marked' * (number in table.marked))}>"
        for column, (cell, is_text) in enumerate(zip(row, texts, strict=True)):
            shown = _shown(cell)
            if table.anchors and not column:
                shown = f'<a href="#{table.anchors[number]}">{shown}</a>'
            kind = ("text long" if len(cell) > _LONG else "text") if is_text else ""
            yield f"<td{_kind(kind)}>{shown}</td>"
        yield "</tr>\n"
    yield "</tbody>\n</table></div>"


def _kind(kind: str) -> str:
    """Return the attribute that a style sheet goes by; empty without one."""
    return f' class="{kind}"' if kind else ""
