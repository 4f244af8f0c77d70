"""A table as plain data, which the terminal, Markdown and HTML show alike."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text under a header.

    Attributes
    ----------
    header : tuple of str
        Names of the columns.
    rows : tuple of tuple of str
        Each as long as `header`. Names from models stand there as they are: whoever shows the
        table escapes them.
    text_columns : frozenset of str
        Columns that stand to the left; all others hold numbers and stand to the right.
    marked : frozenset of int
        Indices of rows to emphasise.
    caption : str
        A sentence below the table, or empty.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: frozenset[str] = frozenset()
    marked: frozenset[int] = frozenset()
    caption: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.header) for row in self.rows)

    def is_text(self, column: str) -> bool:
        """Return whether a column holds words."""
        return column in self.text_columns

    def without(self, columns: Collection[str]) -> Table:
        """Return the table without some of its columns."""
        kept = [index for index, name in enumerate(self.header) if name not in columns]
        return Table(
            header=tuple(self.header[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
            text_columns=self.text_columns,
            marked=self.marked,
            caption=self.caption,
        )
