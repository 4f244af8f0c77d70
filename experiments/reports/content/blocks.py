"""What a report is made of, as plain data, which the terminal, Markdown and HTML show alike.

Names from models stand there as they are: whoever shows them escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, TypeVar

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

    def beside(self, **columns: str) -> Table:
        """Return the table with more columns of words before it, each of one text."""
        names = tuple(name.replace("_", " ") for name in columns)
        return replace(
            self,
            header=(*names, *self.header),
            rows=tuple((*columns.values(), *row) for row in self.rows),
            text_columns=self.text_columns.union(names),
        )

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


class Picture(Protocol):
    """An image, drawn when it is first asked for."""

    @property
    def svg(self) -> str:
        """The image as a file."""

    @property
    def inline(self) -> str:
        """The image within a page of HTML, in the colours of the page."""

    @property
    def pdf(self) -> bytes:
        """The image as a file for print."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with what a page says of it.

    Attributes
    ----------
    name : str
        Of its file, without a suffix: of lower-case letters, digits and hyphens.
    title : str
        A few words, for its heading.
    caption : str
        A sentence on its contents and how to read them; or empty.
    picture : Picture
        The image.
    """

    name: str
    title: str
    caption: str
    picture: Picture


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, which ends in the names of files that it leads to; or in none."""

    text: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    """Lines for a terminal."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """What stands closed below a summary until a reader opens it.

    Attributes
    ----------
    short, anchor : str
        As of :class:`Section`.
    """

    summary: str
    content: tuple[Block, ...]
    short: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading.

    Attributes
    ----------
    title, short : str
        Heading, and what a table of contents says; empty leaves it out there.
    anchor : str
        Where links lead, of letters, digits and hyphens; or empty.
    """

    title: str
    content: tuple[Block, ...]
    short: str = ""
    anchor: str = ""


def all_figures(block: Block) -> Iterator[Figure]:
    """Yield the figures of a block and of all within it."""
    if isinstance(block, Figure):
        yield block
    elif isinstance(block, (Section, Folded)):
        for each in block.content:
            yield from all_figures(each)


Block: TypeAlias = Table | Items | Figure | Text | Code | Folded | Section
