"""Blocks of a report as plain data, for the terminal, Markdown and HTML.

Names of models are stored unescaped: each format escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text under a header, as many in each row as in it.

    `text_columns` are columns of words, aligned left; the others hold numbers, aligned right.
    `marked` are indices of rows to emphasise. The caption is a sentence above the table; `anchors`,
    if any, are link targets of the first cell of each row.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: frozenset[str] = frozenset()
    marked: frozenset[int] = frozenset()
    caption: str = ""
    anchors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.header) for row in self.rows)

    def without(self, columns: Collection[str]) -> Table:
        """Return the table without some of its columns."""
        kept = [index for index, name in enumerate(self.header) if name not in columns]
        return replace(
            self,
            header=tuple(self.header[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
        )

    def column(self, name: str) -> tuple[str, ...]:
        """Return the cells of a column."""
        return tuple(row[self.header.index(name)] for row in self.rows)

    def without_alike(self, columns: Collection[str]) -> Table:
        """Return the table without those of `columns` that are the same in every row."""
        known = [name for name in columns if name in self.header]
        return self.without([name for name in known if len({*self.column(name)}) <= 1])


def tabulated(
    entries: Iterable[_Entry],
    columns: Mapping[str, Callable[[_Entry], str]],
    *,
    text: Collection[str],
    caption: str = "",
    marked: Collection[int] = (),
) -> Table:
    """Return a table with a row for each entry and a cell for each function in `columns`."""
    rows = tuple(tuple(cell(entry) for cell in columns.values()) for entry in entries)
    return Table(tuple(columns), rows, frozenset(text), frozenset(marked), caption)


@dataclass(frozen=True, slots=True)
class Items:
    """A list of sentences, each with its subject, which may be empty."""

    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph that ends in links to files, if any."""

    text: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    """Lines for a terminal."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading.

    `short` is its entry in the table of contents, with none if empty; `anchor` a link target, in
    letters, digits and hyphens, or empty.
    """

    title: str
    content: tuple[Block, ...]
    short: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Folded(Section):
    """A section that is closed until a reader opens it; its heading is the summary."""


Block: TypeAlias = Table | Items | Text | Code | Section
