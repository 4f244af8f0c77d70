"""The layout of all printed tables and sentences, which fit the terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import Final

from solver.model.text import printable

_LEAST_WIDTH: Final = 12
"""Of a terminal, and of a folded column."""
_MOST_NAMES: Final = 100
"""Letters in a line of names; longer ones are hard to read."""
_GAP: Final = "  "


class _Folds(textwrap.TextWrapper):
    wordsep_re = re.compile(r"(\s+|[^\s:._/-]+[:._/-]+)")


def terminal_width() -> int | None:
    """Return the columns of the terminal, or of ``COLUMNS``; None for a pipe or a file."""
    columns = shutil.get_terminal_size((0, 0)).columns
    return max(columns, _LEAST_WIDTH) if columns > 0 else None


def fits(header: Sequence[str], rows: Iterable[Sequence[str | Sequence[str]]]) -> bool:
    """Return True if a table fits the terminal when only its header is folded."""
    table = [[_lines_of(cell) for cell in row] for row in [header, *rows]]
    return _missing(_widths(_with_folded_names(table))) <= 0


def names_width() -> int:
    """Return the letters in a line of names below a row of a table."""
    return min(terminal_width() or _MOST_NAMES, _MOST_NAMES) - len(_GAP)


def wrapped(lines: Iterable[str], indent: str = "") -> list[str]:
    """Return lines wrapped to the terminal, continuation lines after `indent`."""
    width = terminal_width()
    if width is None:
        return [*lines]
    wrap = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [part for line in lines for part in wrap.wrap(line) or [""]]


def table_lines(
    header: Sequence[str],
    rows: Sequence[Sequence[str | Sequence[str]]],
    *,
    text: Collection[str] = (),
    rules: Collection[int] = (),
    below: Sequence[Sequence[str]] = (),
) -> list[str]:
    r"""Return the lines of a table, or a block for each row if the terminal is too narrow.

    The first column and those named in `text` are left-aligned, and folded if the table needs it;
    others hold numbers. A cell of several lines is a sequence of them. There is a rule above the
    rows with numbers in `rules`; the number of rows stands for the end. `below` has names below
    each row, over the whole width.

    Examples
    --------
    >>> rows = [["cuda:0", "12 ms"], ["total", "12 ms"]]
    >>> lines = table_lines(["device", "load"], rows, rules=[1], below=[["layers.0-5"]])
    >>> print("\n".join(lines))
    device   load
    -------------
    cuda:0  12 ms
      layers.0-5
    -------------
    total   12 ms
    """
    table = [[_lines_of(cell) for cell in row] for row in [header, *rows]]
    under = [*map(_printable, below), *([] for _ in range(len(rows) - len(below)))]
    left = [at for at, name in enumerate(header) if not at or name in text]
    if _missing(_widths(table)) > 0:
        table = _with_folded_names(table)
    widths = _widths(table)
    for _ in range(_missing(widths)):
        widest = max(left, key=widths.__getitem__)
        if widths[widest] <= _LEAST_WIDTH:
            return _blocks(table, under) + [""] * (len(rows) in rules)
        widths[widest] -= 1
    found = [_row(row, widths, left) for row in table]
    rule = "-" * max(len(line) for lines in found for line in lines)
    lines = found[0]
    for number, (row_lines, names) in enumerate(zip(found[1:], under, strict=True)):
        lines += [rule] * (number in {0, *rules}) + row_lines
        lines += wrapped((_GAP + name for name in names), 2 * _GAP)
    return lines + [rule] * (len(rows) in rules)


def _missing(widths: Sequence[int]) -> int:
    """Return the excess width of columns over the terminal."""
    width = terminal_width()
    return 0 if width is None else sum(widths) + len(_GAP) * (len(widths) - 1) - width


def _lines_of(cell: str | Sequence[str]) -> list[str]:
    return _printable([cell] if isinstance(cell, str) else cell or [""])


def _printable(lines: Iterable[str]) -> list[str]:
    return [printable(line) for line in lines]


def _with_folded_names(table: Sequence[list[list[str]]]) -> list[list[list[str]]]:
    """Return a table with column names folded to the width of their cells."""
    widths = _widths([[name.split() or [""] for (name,) in table[0]], *table[1:]])
    names = zip(table[0], widths, strict=True)
    return [[_folded(name, width) for name, width in names], *table[1:]]


def _widths(table: Sequence[Sequence[Sequence[str]]]) -> list[int]:
    return [max(len(x) for cell in column for x in cell) for column in zip(*table, strict=True)]


def _folded(lines: Iterable[str], width: int) -> list[str]:
    """Return lines of at most `width` letters; names are broken after a separator if possible."""
    wrap = [[line] if len(line) <= width else _Folds(width).wrap(line) for line in lines]
    return [part for parts in wrap for part in parts]


def _row(cells: Sequence[Sequence[str]], widths: Sequence[int], left: Collection[int]) -> list[str]:
    folded = map(_folded, cells, widths)
    return [
        _GAP.join(
            part.ljust(width) if at in left else part.rjust(width)
            for at, (part, width) in enumerate(zip(parts, widths, strict=True))
        ).rstrip()
        for parts in zip_longest(*folded, fillvalue="")
    ]


def _blocks(table: Sequence[Sequence[list[str]]], under: Sequence[list[str]]) -> list[str]:
    """Return a line for each cell, after its column name; empty cells are left out."""
    names = [" ".join(parts) for parts in table[0]]
    start = max(map(len, names)) + len(_GAP)
    lines: list[str] = []
    for row, below in zip(table[1:], under, strict=True):
        lines += [""] * bool(lines)
        for name, parts in zip(names, row, strict=True):
            if any(parts):
                lines += wrapped([f"{name:<{start}}{', '.join(parts)}"], " " * start)
        lines += wrapped((_GAP + part for part in below), 2 * _GAP)
    return lines
