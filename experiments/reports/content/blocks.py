"""What a report is made of, as plain data, which the terminal, Markdown and HTML show alike.

Names from models stand there as they are: whoever shows them escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text under a header.

    Attributes
    ----------
    header : tuple of str
        Names of the columns.
    rows : tuple of tuple of str
        Each as long as `header`.
    text_columns : frozenset of str
        Columns that stand to the left; all others hold numbers and stand to the right.
    marked : frozenset of int
        Indices of rows to emphasise.
    caption : str
        A sentence above the table, or empty.
    anchors : tuple of str
        The section to which the first cell of each row leads; or empty.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: frozenset[str] = frozenset()
    marked: frozenset[int] = frozenset()
    caption: str = ""
    anchors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.header) for row in self.rows)

    def is_text(self, column: str) -> bool:
        """Return whether a column holds words."""
        return column in self.text_columns

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
        """Return the table without those of `columns` that say the same in every row."""
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
    """Return a table with a row for each entry, whose cells `columns` makes."""
    rows = tuple(tuple(cell(entry) for cell in columns.values()) for entry in entries)
    return Table(tuple(columns), rows, frozenset(text), frozenset(marked), caption)


@dataclass(frozen=True, slots=True)
class Items:
    """A list of sentences, each about something.

    Attributes
    ----------
    entries : tuple of (str, str)
        What each is about, or empty; and what is said of it, or empty.
    title : str
        A few words above the list, or empty.
    kind : str
        How a page may set it off: ``facts`` or ``headline``; or empty.
    """

    entries: tuple[tuple[str, str], ...]
    title: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with what a page says of it.

    Attributes
    ----------
    name : str
        Of letters alone; for identifiers and file names.
    title : str
        A few words, for its heading.
    caption : str
        What is to be seen and how to read it.
    draw : callable
        Returns the whole image as SVG; a page without figures does not call it.
    tables : tuple of Table
        The same in numbers.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], str]
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, which ends in the name of a file that it leads to; or in none."""

    text: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines for a terminal."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """What stands closed below a summary until a reader opens it."""

    summary: str
    content: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading.

    Attributes
    ----------
    title, short : str
        Heading, and what a table of contents says; empty leaves it out there.
    anchor : str
        Where links lead, of letters, digits and hyphens; or empty.
    kind : str
        How a page may set it off, such as ``model`` or ``case``; or empty.
    """

    title: str
    content: tuple[Block, ...]
    short: str = ""
    anchor: str = ""
    kind: str = ""


Block: TypeAlias = Table | Items | Figure | Text | Code | Folded | Section
