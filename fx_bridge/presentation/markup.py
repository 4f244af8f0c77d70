"""HTML of pages about plans: escaped text, device colours, tables."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from typing import Final

from solver.model.text import printable

_COLOURS: Final = (
    *("#5aa9e6", "#f2a541", "#4fbf8b", "#e98bb5", "#c9b52e", "#a48be0", "#ef7b62", "#9aa5b1"),
)
"""Light enough for dark letters, dark enough for white paper; later devices get rotated hues."""
_GOLDEN_ANGLE: Final = 137.508
_MOST_ROWS: Final = 200
"""Of a table; further rows are counted."""


def escaped(text: object) -> str:
    """Return HTML that shows a text, in which no character is markup."""
    return html.escape(printable(str(text)))


def escaped_lines(text: str) -> str:
    """Return HTML that shows a text of several lines."""
    return "\n".join(map(escaped, text.split("\n")))


def device_colours(count: int) -> str:
    """Return the CSS rules that give class ``d3`` the colour of the fourth device."""
    return "".join(f".d{number}{{--c:{colour_of(number)}}}" for number in range(count))


def colour_of(device: int) -> str:
    """Return the CSS colour of a device, by its number."""
    if device < len(_COLOURS):
        return _COLOURS[device]
    return f"hsl({device * _GOLDEN_ANGLE % 360:.0f} 60% 68%)"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], text: Collection[str] = ()) -> str:
    """Return a table of HTML cells; columns in `text` are left-aligned, excess rows counted."""
    kinds = [' class="text"' if name in text else "" for name in header]
    head = "".join(f"<th{kind}>{name}" for kind, name in zip(kinds, header, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}" for kind, cell in zip(kinds, row, strict=True))
        for row in rows[:_MOST_ROWS]
    )
    if len(rows) > _MOST_ROWS:
        body += f'<tr><td class="text" colspan="{len(header)}">and {len(rows) - _MOST_ROWS:,} more'
    return f'<div class="wide"><table><tr>{head}{body}</table></div>'


def folded(summary: str, content: str) -> str:
    """Return content that the reader can unfold."""
    return f"<details><summary>{summary}</summary>{content}</details>"
