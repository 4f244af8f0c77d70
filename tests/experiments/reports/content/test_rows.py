"""Tests of the tables of answers: which columns stand there, and what their cells say."""

from __future__ import annotations

import pytest

from experiments.comparison.records import Case, EquivalenceRow
from experiments.reports.content.blocks import Table
from experiments.reports.content.rows import (
    answers_table,
    exact_table,
    format_change,
    overview_table,
)
from tests.support.studies import key, row, study


def cells(table: Table, line: int) -> dict[str, str]:
    return dict(zip(table.header, table.rows[line], strict=True))


def test_cells_say_what_a_row_holds() -> None:
    rows = [
        row("greedy", 20_000_000),
        row("chain", 16_000_000),
        row("auto", 12_000_000, bound=12_000_000, answered_by="ideal-dp"),
    ]
    table = answers_table(rows)
    assert cells(table, 2) == {
        "model": "m",
        "devices": "equal",
        "planner": "auto (ideal-dp)",
        "status": "optimal",
        "objective": "12 ms",
        "vs greedy": "-40.0 %",
        "vs chain": "-25.0 %",
        "bound": "12 ms",
        "gap": "0 %",
        "transfer": "7 B",
        "peak memory": "50.0 %",
        "devices used": "2",
        "time": "1.00 s",
    }
    assert cells(table, 0)["vs greedy"] == "-"
    assert cells(table, 1)["gap"] == "-"
    assert table.marked == {2}


def test_columns_that_say_nothing_are_left_out() -> None:
    assert set(answers_table([row("auto", 1)]).header).isdisjoint(
        ("minimised", "memory model", "seed", "to disk", "own memory")
    )
    varied = [
        row("auto", 1, peak_rss_bytes=10**6),
        row("auto", 1, 2, case=key(objective=("transfer", "devices")), seed=3),
        row("peer", status="spills", spilled_bytes=5000),
    ]
    table = answers_table(varied)
    assert cells(table, 1)["minimised"] == "transfer, devices"
    assert cells(table, 1)["objective"] == "1 B, 2"
    assert cells(table, 1)["seed"] == "3"
    assert cells(table, 2)["to disk"] == "5 kB"
    assert cells(table, 0)["own memory"] == "1 MB"
    assert "memory model" not in table.header
    assert "model" not in answers_table(varied, names_case=False).header


def test_a_change_is_against_the_same_seed() -> None:
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
def test_only_equal_numbers_read_as_no_change(old: int, new: int, text: str) -> None:
    assert format_change(old, new) == text


def test_statuses_are_words() -> None:
    rows = [
        row("a", status="infeasible"),
        row("b"),
        row("c", bottleneck_ns=7, reason="device 'x' needs 5 bytes"),
        row("d", status="timed out"),
        row("e", 1),
        row("f", seed=1),
        row("f", seed=2),
    ]
    found = [cells(answers_table(rows), line)["status"] for line in range(5)]
    assert found == ["no plan exists", "nothing found", "breaks limits", "timed out", "feasible"]
    why = answers_table(rows, names_case=False).column("why")
    assert why == ("", "", "device 'x' needs 5 bytes", "", "", "", "")
    assert "why" not in answers_table(rows).header


def test_the_overview_names_the_best_plan_and_the_best_proof() -> None:
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


def test_the_overview_says_whether_splits_compute_the_same() -> None:
    a, b, c, d = (key(name) for name in "abcd")
    checks = [EquivalenceRow(a, "auto", True), EquivalenceRow(b, "auto", True)]
    checks += [EquivalenceRow(b, "chain", True), EquivalenceRow(c, "auto", False)]
    found = study(cases=tuple(map(Case, (a, b, c, d))), checks=tuple(checks))
    words = ("same", "same, 2 plans", "NOT EQUAL in 1 of 1", "-")
    assert overview_table(found, with_splits=True).column("split") == words
    # A terminal says it in a sentence.
    assert "split" not in overview_table(found).header


def test_exact_numbers_are_those_of_the_rows() -> None:
    table = exact_table([row("auto", 12, 3, bound=10), row("peer", spilled_bytes=7)])
    first, second = cells(table, 0), cells(table, 1)
    assert (first["objective"], first["bound"], first["gap"]) == ("12 3", "10", str(2 / 12))
    assert (first["feasible"], second["feasible"]) == ("true", "false")
    assert (second["objective"], second["transfer_bytes"], second["spilled_bytes"]) == ("", "", "7")
