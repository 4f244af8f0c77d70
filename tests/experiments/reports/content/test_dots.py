"""Tests of answers in multiples of the best bound."""

import pytest

from experiments.reports.content.dots import dots
from tests.support.studies import key, row


def test_ratios_are_to_the_best_bound_that_anyone_proves():
    (found,) = dots([row("auto", 30, bound=20), row("cp-sat", 33, bound=24), row("greedy", 36)])
    assert {each.planner: [ratio for ratio, _ in each.ratios] for each in found.planners} == {
        "auto": [1.25],
        "cp-sat": [1.375],
        "greedy": [1.5],
    }
    assert (found.objective, found.unbounded) == (("bottleneck",), 0)


def test_without_a_bound_the_best_plan_takes_its_place():
    rows = [row("greedy", 30), row("chain", 20), row("auto", 5, case=key("n"), bound=5)]
    (found,) = dots(rows)
    ratios = {each.planner: each.ratios[0][0] for each in found.planners}
    assert ratios == {"greedy": 1.5, "chain": 1.0, "auto": 1.0}
    assert found.unbounded == 1


def test_answers_without_a_plan_are_counted():
    cases = [key(name) for name in "abc"]
    rows = [row("auto", 4, case=case, bound=4) for case in cases]
    rows += [row("peer", 16, case=cases[0]), row("peer", case=cases[1])]
    rows += [row("peer", 3, case=cases[2], feasible=False)]
    (found,) = dots(rows)
    auto, peer = found.planners
    assert (auto.planner, auto.mean, auto.answers) == ("auto", 1.0, 3)
    assert (len(peer.ratios), peer.answers, peer.mean) == (1, 3, pytest.approx(4.0))
