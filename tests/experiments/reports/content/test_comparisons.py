"""Tests of the tables of planners beside the exact solver."""

from __future__ import annotations

import pytest

from experiments.reports.content.rows import comparison_table, format_ratio
from experiments.reports.content.statistics import comparisons
from tests.support.studies import key, row


def test_the_table_counts_what_peers_answer() -> None:
    rows = [row("auto", 10, case=key(name), bound=10) for name in "abcd"]
    rows += [
        row("accelerate", case=key("a"), status="spills", spilled_bytes=7),
        row("accelerate", case=key("b"), status="killed"),
        row("accelerate", 20, case=key("c")),
        row("accelerate", case=key("d")),
    ]
    (first,) = map(comparison_table, comparisons(rows))
    exact, cells = (dict(zip(first.header, row, strict=True)) for row in first.rows)
    assert (exact["planner"], exact["feasible"], exact["mean ratio"]) == ("auto", "4", "-")
    assert cells["planner"] == "accelerate"
    counts = ("answers", "feasible", "no plan", "spills", "fails", "only exact")
    assert [cells[name] for name in counts] == [*"411113"]
    assert cells["mean ratio"] == cells["least"] == cells["most"] == "2.000"


def test_every_objective_has_a_table_of_its_own() -> None:
    other = key(objective=("transfer", "latency"))
    rows = [row("chain", 4), row("auto", 2), row("chain", 9, 1, case=other)]
    found = comparisons([*rows, row("auto", 3, 1, case=other)])
    assert [comparison_table(each).caption for each in found] == [
        "Planners beside the exact solver, auto, objective bottleneck",
        "Planners beside the exact solver, auto, objective transfer, latency",
    ]
    assert [comparison_table(each).rows[1][10] for each in found] == ["2.000", "3.000"]


def test_without_an_exact_solver_or_others_there_is_no_table() -> None:
    for rows in ([row("greedy", 3), row("chain", 2)], [row("auto", 3)]):
        assert [each.compared for each in comparisons(rows)] == [()]
    assert comparisons([]) == ()


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, "-"), (1.0, "1"), (1.5, "1.500"), (1.0001, "1.000+"), (0.9999, "1.000-")],
)
def test_a_ratio_that_is_not_one_never_reads_as_one(ratio: float | None, text: str) -> None:
    assert format_ratio(ratio) == text
