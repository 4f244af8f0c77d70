"""Tables as Markdown in pages, and their differences outside time columns.

A table called ``zoo`` stands between the lines ``<!-- table: zoo -->`` and
``<!-- end of table -->`` of a page. Everything else in the page is kept byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from solver import PartitionError
from solver.model.text import printable

END: Final = "<!-- end of table -->"
_MARKED: Final = re.compile(r"(?ms)^<!-- table: ([^\n]*?) -->\n(.*?)^<!-- end of table -->$")
_MARKER: Final = re.compile(r"(?m)^<!-- (?:table: .*|end of table) -->$")
_ROW: Final = re.compile(r"^\|(.*)\|$")


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Cells of text under a header.

    Attributes
    ----------
    header, rows : tuple of str, tuple of tuple of str
        Names of the columns, and cells as many as names in each row.
    clock_columns : frozenset of str
        Columns that depend on the clock and differ from run to run.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    clock_columns: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.header) for row in self.rows)
        assert self.clock_columns <= {*self.header}

    def to_markdown(self) -> str:
        """Return the table as Markdown, with an end of line after every row."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        return "".join(f"{_line(cells)}\n" for cells in lines)

    def differences(self, text: str) -> list[str]:
        """Return a line for each difference of the table in `text`, outside time columns."""
        lines = [line for line in text.splitlines() if line.strip()]
        shown = [_cells(line) for line in lines]
        if len(shown) < 2 or any(cells is None for cells in shown):
            return ["there is no table; write one with --update"]
        header, _, *rows = (tuple(cells or ()) for cells in shown)
        wanted = tuple(_escaped(cell) for cell in self.header)
        if header != wanted:
            return [f"its columns are {_line(header)}, not {_line(wanted)}"]
        found = []
        for number, (row, other) in enumerate(zip(rows, self.rows, strict=False), 1):
            found += [
                f"row {number} ({row[0]}), {name}: {cell!r} is shown, {_escaped(right)!r} is found"
                for name, cell, right in zip(self.header, row, other, strict=False)
                if name not in self.clock_columns and cell != _escaped(right)
            ]
        if len(rows) != len(self.rows):
            found.append(f"{len(rows)} rows are shown, {len(self.rows)} are found")
        return found


def _line(cells: tuple[str, ...]) -> str:
    if {*cells} == {"---"}:
        return "|" + "---|" * len(cells)
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(cell: str) -> str:
    """Escape a cell for Markdown: it may hold names of models."""
    text = printable(cell).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def _cells(line: str) -> tuple[str, ...] | None:
    inside = _ROW.match(line.strip())
    if inside is None:
        return None
    return tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", inside[1]))


def marked_tables(text: str, known: Collection[str]) -> dict[str, str]:
    """Return the texts between the markers of a page, by name.

    Raises
    ------
    PartitionError
        If a marker has no partner, or a name is unknown or repeated.
    """
    found: dict[str, str] = {}
    for match in _MARKED.finditer(text):
        name, inside = match[1], match[2]
        if stray := _MARKER.search(inside):
            raise PartitionError(
                f"the markers of table {name!r} hold {stray[0]!r}; end each table by {END!r}"
            )
        if name not in known:
            raise PartitionError(f"table {name!r} is unknown; there are {', '.join(known)}")
        if name in found:
            raise PartitionError(f"table {name!r} is marked twice; leave one out")
        found[name] = inside
    if stray := _MARKER.search(_MARKED.sub("", text)):
        raise PartitionError(f"the marker {stray[0]!r} has no partner; add it, or leave it out")
    return found


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return a page with the given tables between their markers."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        if name not in tables:
            return match[0]
        return f"<!-- table: {name} -->\n{tables[name]}{END}"

    return _MARKED.sub(replaced, text)
