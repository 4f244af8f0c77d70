"""Tests of what a study is said to show."""

from experiments.comparison.records import Case, EquivalenceRow, ModelRecord
from experiments.reports.content.headline import headline
from tests.support.studies import key, row, study

EQUAL, UNEQUAL = key("m", "equal"), key("m", "unequal")


def said(found):
    return "\n".join(": ".join(filter(None, finding)) for finding in headline(found))


def test_it_hides_nothing():
    broken = (ModelRecord(model="p", reason="no such luck"),)
    impossible = Case(key("q"), None, "devices too small.")
    text = said(
        study(
            row("chain", 100),
            row("auto", 110, bound=55),
            row("chain", 10, case=key("n")),
            row("auto", case=key("n"), status="infeasible"),
            row("auto", case=key("o"), reason="ran out of time"),
            checks=(EquivalenceRow(key(), "auto", False, 0.5),),
            models=broken,
            cases=(impossible,),
        )
    )
    assert "WORSE than chain in m on equal devices" in text
    assert "In 1 it has a plan without a proof: gap 50.00 % (m on equal devices)" in text
    assert "decides nothing in 1: o on equal devices: ran out of time." in text
    assert "proves that no plan exists in n on equal devices" in text
    assert "chain has a plan, and the exact solver has NONE, in n on equal devices" in text
    assert "0 of 1 split model compute what the model computes" in text
    assert "NOT EQUAL: m on equal devices, split by auto: largest error 0.5." in text
    assert "p could not be compared: no such luck." in text
    assert "q on equal devices could not be compared: devices too small." in text


def test_an_objective_of_zero_is_no_division():
    text = said(study(row("chain", 0), row("auto", 0, bound=0)))
    assert "buys nothing over chain, but for the proof, in 1" in text
    assert "1 case with a value of zero not in the mean" in text
    assert "times the exact" not in text


def test_without_an_exact_solver_nothing_is_claimed():
    found = study(row("greedy", 3), row("chain", 2))
    assert tuple(said(found).splitlines()) == (
        "No exact solver was asked (one of auto, cp-sat, ideal-dp), so nothing is compared with "
        "an optimum.",
    )
    assert headline(study()) == ()
