"""Tests of tables as CSV and LaTeX."""

import csv
import re

from experiments.reports.content.blocks import Table
from experiments.reports.formats.table_files import to_csv, to_latex
from tests.support.studies import HOSTILE

TABLE = Table(
    ("name", "a_b"),
    tuple((name, "-5.0 %") for name in HOSTILE),
    frozenset({"name"}),
    frozenset({1}),
)


def test_csv_is_read_back():
    table = Table(("model", "n"), (("a, b", "1"), ('say "x"', "-2")), frozenset({"model"}))
    assert list(csv.reader(to_csv(table).splitlines())) == [["model", "n"], *map(list, table.rows)]


def test_words_are_no_formulas_and_numbers_stay():
    rows = tuple((text, "-5.0 %") for text in ("=1+1", "+a", "@a", "-a", "-", "a"))
    lines = list(csv.reader(to_csv(Table(("w", "n"), rows, frozenset("w"))).splitlines()))
    assert [word for word, _ in lines[1:]] == ["'=1+1", "'+a", "'@a", "'-a", "-", "a"]
    assert {number for _, number in lines[1:]} == {"-5.0 %"}


def test_each_row_is_one_printable_line():
    for text in (to_csv(TABLE), to_latex(TABLE)):
        text.encode()
        assert all(line.isprintable() for line in text.splitlines())
    assert len(to_csv(TABLE).splitlines()) == len(HOSTILE) + 1
    assert len(to_latex(TABLE).splitlines()) == len(HOSTILE) + 7


def test_latex_is_escaped():
    lines = to_latex(TABLE).splitlines()
    assert lines[:5] == [
        r"% \usepackage{booktabs}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"name & a\_b \\",
        r"\midrule",
    ]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert r"\textless{}script\textgreater{}alert(1)" in lines[5]
    assert lines[6] == r"\textbf{../../x} & \textbf{-5.0 \%} \\"
    for line in lines[5:-2]:
        # One unescaped ampersand and one end of a line; nothing else means anything.
        assert len(re.findall(r"(?<!\\)&", line)) == 1 and line.endswith(r" \\")
        bare = re.sub(r"\\(text\w+|[&%$#_{}\\])", "", line)
        assert not re.search(r"[\\%$#_~^<>|\"`]", bare)
