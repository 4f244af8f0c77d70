"""Blocks of a report as plain data, for the terminal, Markdown and HTML.

Names of models are stored unescaped: each format escapes them.
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
        Cells, as many in each row as in `header`.
    text_columns : frozenset of str
        Columns of words, aligned left; the others hold numbers, aligned right.
    marked : frozenset of int
        Indices of rows to emphasise.
    caption : str
        A sentence above the table, or empty.
    anchors : tuple of str
        Link target of the first cell of each row; or empty.
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
        """Return True if a column holds words."""
        return column in self.text_columns

    def beside(self, **columns: str) -> Table:
        """Prepend columns of words, each with one text in all rows."""
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
    """A list of sentences, each with an optional subject.

    Attributes
    ----------
    entries : tuple of (str, str)
        Subject and sentence, either of them possibly empty.
    kind : str
        CSS class of the list, such as ``headline``; or empty.
    """

    entries: tuple[tuple[str, str], ...]
    kind: str = ""


class Picture(Protocol):
    """An image, drawn on first access."""

    @property
    def svg(self) -> str:
        """The image as an SVG file."""

    @property
    def inline(self) -> str:
        """The image as SVG inside HTML, in the colours of the page."""

    @property
    def pdf(self) -> bytes:
        """The image as a PDF file."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with its heading and caption; the caption may be empty.

    Attributes
    ----------
    name : str
        File name without suffix, in lower-case letters, digits and hyphens.
    """

    name: str
    title: str
    caption: str
    picture: Picture


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
class Folded:
    """Blocks below a summary, closed until a reader opens them; see :class:`Section`."""

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
        Heading, and its entry in the table of contents; no entry if empty.
    anchor : str
        Link target, in letters, digits and hyphens; or empty.
    """

    title: str
    content: tuple[Block, ...]
    short: str = ""
    anchor: str = ""


def all_figures(block: Block) -> Iterator[Figure]:
    """Yield the figures of a block and of the blocks within it."""
    if isinstance(block, Figure):
        yield block
    elif isinstance(block, (Section, Folded)):
        for each in block.content:
            yield from all_figures(each)


Block: TypeAlias = Table | Items | Figure | Text | Code | Folded | Section
