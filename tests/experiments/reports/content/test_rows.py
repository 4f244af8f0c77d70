"""Tests of the tables of answers: which columns stand there, and what their cells say."""

from __future__ import annotations

import pytest

from experiments.comparison.records import Case
from experiments.reports.content.rows import (
    answers_table,
    format_change,
    format_ratio,
    overview_table,
)
from tests.support.studies import key, row, study


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, "-"), (1.0, "1"), (1.5, "1.500"), (1.0001, "1.000+"), (0.9999, "1.000-")],
)
def test_a_ratio_that_is_not_one_never_reads_as_one(ratio, text):
    assert format_ratio(ratio) == text


def cells(table, line):
    return dict(zip(table.header, table.rows[line], strict=True))


def test_a_change_is_against_the_same_seed():
    rows = [row("greedy", 10, seed=0), row("greedy", 40, seed=1), row("auto", 20, seed=1)]
    assert cells(answers_table(rows), 2)["vs greedy"] == "-50.0 %"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (4, 3, "-25.0 %"),
        (4, 6, "+50.0 %"),
        (0, 0, "0 %"),
        (0, 5, "from 0"),
        (10**12, 10**12 + 1, "+0.0000000001 %"),
        (10**12, 10**12 - 1, "-0.0000000001 %"),
        (10**5, 10**5 - 9, "-0.009 %"),
    ],
)
def test_only_equal_numbers_read_as_no_change(old, new, text):
    assert format_change(old, new) == text


def test_the_overview_names_the_best_plan_and_the_best_proof():
    """Tests a plan of one planner that another one proves, and gaps to the best bound."""
    a, b, c, d = (key(name) for name in "abcd")
    found = study(
        row("chain", 10, case=a),
        row("cp-sat", 10, case=a, bound=10),
        row("chain", 8, case=b),
        row("cp-sat", 10, case=b, bound=6),
        row("auto", case=c, status="infeasible"),
        cases=(Case(a), Case(b), Case(c), Case(d, None, "too small")),
    )
    table = overview_table(found)
    first, second, third, fourth = (cells(table, line) for line in range(4))
    assert (first["best plan by"], first["status"]) == ("cp-sat", "proven optimal")
    assert (second["best plan by"], second["status"]) == ("chain", "feasible")
    assert second["gap"] == "25.00 %"
    assert third["status"] == "no plan exists"
    assert fourth["status"] == "too small"
    assert (second["planners"], third["without a plan"]) == ("2", "1")
    assert "minimised" not in table.header
