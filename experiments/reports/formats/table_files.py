"""Tables as CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from typing import Final

from experiments.reports.content.blocks import Table
from solver.model.text import printable

_ESCAPES: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "--": "-{}-",
    "`": r"\textasciigrave{}",
    "\u2026": r"\ldots{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}
_SPECIAL: Final = re.compile("|".join(map(re.escape, _ESCAPES)))
_FORMULA: Final = re.compile(r"[=+@-]")


def to_csv(table: Table) -> str:
    """Return a table as CSV; no text cell is a formula to a spreadsheet."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.header)
    are_words = [table.is_text(name) for name in table.header]
    for row in table.rows:
        cells = (printable(cell) for cell in row)
        writer.writerow(
            "'" + cell if is_word and len(cell) > 1 and _FORMULA.match(cell) else cell
            for cell, is_word in zip(cells, are_words, strict=True)
        )
    return stream.getvalue()


def to_latex(table: Table) -> str:
    r"""Return a table as a ``tabular`` of booktabs; marked rows are bold.

    Examples
    --------
    >>> print(to_latex(Table(("a_b", "n"), (("50 %", "1"),), frozenset({"a_b"}))), end="")
    % \usepackage{booktabs}
    \begin{tabular}{lr}
    \toprule
    a\_b & n \\
    \midrule
    50 \% & 1 \\
    \bottomrule
    \end{tabular}
    """
    columns = "".join("l" if table.is_text(name) else "r" for name in table.header)
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _line(table.header),
        r"\midrule",
    ]
    for number, row in enumerate(table.rows):
        lines.append(_line(row, bold=number in table.marked))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _line(cells: tuple[str, ...], *, bold: bool = False) -> str:
    shown = [_SPECIAL.sub(lambda found: _ESCAPES[found[0]], printable(cell)) for cell in cells]
    if bold:
        shown = [rf"\textbf{{{cell}}}" if cell else "" for cell in shown]
    text = " & ".join(shown)
    # After the end of a line these characters would begin its options.
    return (f"{{{text[0]}}}{text[1:]}" if text[:1] in ("[", "*") else text) + r" \\"
