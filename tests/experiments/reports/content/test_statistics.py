"""Tests of what is counted and averaged over a study, against numbers worked out by hand."""

import pytest

from experiments.reports.content.statistics import (
    BEST_OTHER,
    compare_planners,
    comparisons,
    outcomes_of,
    reference_planner,
)
from tests.support.studies import key, row

A, B, C, D = (key(name) for name in "abcd")


def test_ratios_are_averaged_by_their_geometric_mean():
    rows = [
        row("greedy", 200, case=A),
        row("greedy", 50, case=B),
        row("greedy", 800, case=C),
        row("auto", 100, case=A, bound=100),
        row("auto", 100, case=B, bound=50),
        row("auto", 100, case=C, bound=100),
    ]
    (versus,) = compare_planners(rows, "auto")
    assert (versus.wins, versus.ties, versus.losses) == ((A, C), (), (B,))
    assert versus.geometric_mean == pytest.approx((2 * 0.5 * 8) ** (1 / 3))
    assert versus.ratios == (2.0, 0.5, 8.0)


def test_ties_are_ties_of_exact_integers():
    large = 2**60
    assert float(large) == float(large + 1)
    rows = [row("chain", large + 1, case=A), row("auto", large, case=A)]
    rows += [row("chain", large, case=B), row("auto", large, case=B)]
    (versus,) = compare_planners(rows, "auto")
    assert (versus.wins, versus.ties) == ((A,), (B,))


def test_later_objectives_decide_but_are_not_in_the_ratio():
    rows = [row("chain", 10, 9), row("auto", 10, 3)]
    (versus,) = compare_planners(rows, "auto")
    assert len(versus.wins) == 1
    assert versus.geometric_mean == 1


def test_zeros_and_missing_plans_are_left_out_of_the_mean_and_counted():
    rows = [
        row("chain", 0, case=A),
        row("auto", 0, case=A),
        row("chain", 5, case=B),
        row("auto", 0, case=B),
        row("chain", case=C),
        row("auto", 4, case=C),
        row("chain", 4, case=D),
        row("auto", case=D),
        row("chain", case=key("e")),
        row("auto", case=key("e")),
    ]
    (versus,) = compare_planners(rows, "auto")
    assert versus.geometric_mean is None
    assert (versus.ties, versus.wins, versus.ratios) == ((A,), (B,), ())
    assert (versus.only_reference, versus.only_planner) == ((C,), (D,))


def test_the_best_of_the_others_leaves_out_what_proves():
    rows = [
        row("greedy", 30, case=A),
        row("chain", 20, case=A),
        row("cp-sat", 10, case=A),
        row("coarse", 5, case=A),
        row("auto", 10, case=A),
        row("greedy", 7, case=B),
        row("chain", case=B),
        row("auto", 7, case=B),
    ]
    compared = {versus.planner: versus for versus in compare_planners(rows, "auto")}
    assert tuple(compared) == ("greedy", "chain", "cp-sat", "coarse", BEST_OTHER)
    best = compared[BEST_OTHER]
    assert (best.wins, best.ties) == ((A,), (B,))
    assert best.ratios == (2.0, 1.0)


def test_answers_are_compared_seed_by_seed():
    rows = [
        *(row("random", value, seed=seed) for seed, value in enumerate((10, 20, 40))),
        row("chain", 30, seed=7),
        *(row("auto", value, seed=seed) for seed, value in enumerate((10, 10, 5))),
    ]
    compared = {versus.planner: versus for versus in compare_planners(rows, "auto")}
    assert compared["random"].ratios == (1, 2, 8)
    assert compared["chain"].ratios == (3, 3, 6)
    single = compare_planners([row("chain", 9, seed=7), row("auto", 3, seed=0)], "auto")
    assert single[0].ratios == (3,)
    other = compare_planners([*rows[:3], row("auto", 10)], "auto")
    assert other[0].ratios == (1, 2, 4)


def test_every_answer_has_one_outcome():
    rows = [
        row("x", 1),
        row("x", 1, bound=1),
        row("x", status="spills", spilled_bytes=9),
        row("x", status="unknown", spilled_bytes=9),
        *(row("x", status=word) for word in ("failed", "timed out", "out of memory", "killed")),
        row("x", status="infeasible"),
        row("x", status="unknown"),
    ]
    assert [*outcomes_of(rows).values()] == [2, 2, 4, 1, 1]


def test_the_reference_is_an_exact_solver_that_was_asked():
    assert reference_planner([row("greedy", 1), row("cp-sat", 1)]) == "cp-sat"
    assert reference_planner([row("cp-sat", 1), row("auto", 1)]) == "auto"
    assert reference_planner([row("greedy", 1)]) is None


def test_objectives_are_not_averaged_together():
    rows = [row("auto", 1), row("auto", 2, case=key(objective=("transfer",)))]
    first, second = comparisons(rows)
    assert (first.objective, first.exact) == (("bottleneck",), (rows[0],))
    assert (second.objective, second.exact) == (("transfer",), (rows[1],))


def test_planners_that_leave_out_steps_are_others():
    rows = [
        row("auto", 12, bound=9, without=("borders",)),
        row("auto", 10, bound=10),
        row("auto", 11, bound=10, without=("borders", "prices")),
        row("chain", 15),
        row("greedy", 20),
    ]
    assert reference_planner(rows) == "auto"
    assert [each.objective for each in comparisons(rows)[0].exact] == [(10,)]
    compared = compare_planners(rows, "auto")
    assert [each.planner for each in compared] == [
        "auto without borders",
        "auto without borders, prices",
        "chain",
        "greedy",
        BEST_OTHER,
    ]
    assert [each.geometric_mean for each in compared] == pytest.approx([1.2, 1.1, 1.5, 2, 1.5])
