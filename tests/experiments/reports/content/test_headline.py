"""Tests of what a study is said to show."""

from __future__ import annotations

from experiments.comparison.records import Case, EquivalenceRow, ModelRecord, Study
from experiments.reports.content.headline import headline
from tests.support.studies import key, row, study

EQUAL, UNEQUAL = key("m", "equal"), key("m", "unequal")


def said(found: Study) -> str:
    return "\n".join(": ".join(filter(None, finding)) for finding in headline(found))


def test_it_says_how_much_better_and_where_the_exact_solver_buys_nothing() -> None:
    text = said(
        study(
            row("greedy", 200, case=EQUAL),
            row("chain", 100, case=EQUAL),
            row("auto", 100, case=EQUAL, bound=100),
            row("greedy", case=UNEQUAL, reason="too big"),
            row("chain", 125, case=UNEQUAL),
            row("auto", 100, case=UNEQUAL, bound=100, wall_time_s=3.0),
        )
    )
    assert "The exact solver (auto) proves its plan optimal in 2 of 2 cases" in text
    assert "median proof took 2.00 s, the longest 3.00 s (m on unequal devices)" in text
    best, greedy, chain = (
        next(line for line in text.splitlines() if line.startswith(name))
        for name in ("Best of the others:", "greedy:", "chain:")
    )
    assert "better in 1, equal in 1, worse in 0 of 2 cases where both have plans" in best
    assert "better in 1, equal in 0, worse in 0 of 1 case where both have plans" in greedy
    assert "its objective is 2.000 times the exact one;" in greedy
    assert "it finds no feasible plan in 1 of 2 answers" in greedy
    assert "1.118 times the exact one in the geometric mean, 1.250 times at most (m on un" in chain
    assert "Only the exact solver has a plan, and greedy has none, in m on unequal" in text
    # Where the best of the others is as good is said once.
    assert "buys nothing over chain" not in text
    assert "buys nothing over all the others, but for the proof, in 1" in text
    assert "WORSE" not in text
    assert "NONE" not in text


def test_it_hides_nothing() -> None:
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


def test_peers_are_told_of_together() -> None:
    rows = [row("auto", 10, case=key(name), bound=10) for name in "abc"]
    rows += [
        row("accelerate", case=key("a"), status="spills", spilled_bytes=7),
        row("accelerate", case=key("b"), status="killed"),
        row("accelerate", 20, case=key("c")),
        row("even", 10, case=key("a")),
        row("even", 40, case=key("b")),
        row("ahead", 5, case=key("a")),
    ]
    found = dict(headline(study(*rows)))
    assert found["Peers"].endswith(": ahead 0.500 (1), accelerate 2.000 (1), even 2.000 (2).")
    assert found["Peers as good as the exact solver"] == "even in 1."
    assert found["ahead"] == "The exact solver is WORSE than ahead in a on equal devices."
    assert {"accelerate", "even"}.isdisjoint(found)


def test_planners_without_any_plan_are_told_in_one_breath() -> None:
    rows = [row("auto", 10, case=key(name), bound=10) for name in "ab"]
    for spiller in ("spiller", "another"):
        rows += [row(spiller, case=key(name), status="spills", spilled_bytes=7) for name in "ab"]
    rows += [row("none", case=key("a")), row("none", case=key("b"), status="killed")]
    findings = headline(study(*rows))
    assert findings[-1] == (
        "No feasible plan where the exact solver has one",
        "spiller, another (spills in 2); none (fails in 1, finds no feasible plan in 1).",
    )
    assert not any(finding[0] in ("spiller", "none") for finding in findings)


def test_an_objective_of_zero_is_no_division() -> None:
    text = said(study(row("chain", 0), row("auto", 0, bound=0)))
    assert "buys nothing over chain, but for the proof, in 1" in text
    assert "1 case with a value of zero not in the mean" in text
    assert "times the exact" not in text


def test_every_objective_has_sentences_of_its_own() -> None:
    other = key(objective=("transfer", "latency"))
    rows = [row("chain", 4), row("auto", 2), row("chain", 9, 1, case=other)]
    found = study(*rows, row("auto", 3, 1, case=other))
    text = said(found)
    assert text.index("Objective bottleneck\n") < text.index("2.000 times")
    assert text.index("2.000 times") < text.index("Objective transfer, latency\n")
    assert "3.000 times" in text


def test_without_an_exact_solver_nothing_is_claimed() -> None:
    found = study(row("greedy", 3), row("chain", 2))
    assert tuple(said(found).splitlines()) == (
        "No exact solver was asked (one of auto, cp-sat, ideal-dp), so nothing is compared with "
        "an optimum.",
    )
    assert headline(study()) == ()


def test_answers_of_several_seeds_are_not_called_cases() -> None:
    rows = [row(name, 5, seed=seed) for name in ("chain", "auto") for seed in (0, 1)]
    training = key("n")._replace(memory_model="training")
    rows += [row("chain", 9, case=training), row("auto", 9, case=training)]
    text = said(study(*rows))
    assert "proves its plan optimal in 0 of 3 answers" in text
    assert "of 3 answers where both have plans" in text
    assert "in 3: m on equal devices (2 seeds), n on equal devices in training." in text


def test_gaps_are_told_by_the_median_and_the_largest() -> None:
    rows = [row("auto", 10, bound=bound, case=key(str(bound))) for bound in (9, 8, 5)]
    assert "In 3 it has a plan without a proof: median gap 20.00 %, largest 50.00 % (5 on" in said(
        study(*rows)
    )


def test_many_ties_are_named_in_part_and_counted() -> None:
    keys = [key(f"m{index}") for index in range(9)]
    rows = [row(name, 5, case=case) for case in keys for name in ("chain", "auto")]
    text = said(study(*rows))
    assert "buys nothing over chain, but for the proof, in 9" in text
    assert "m5 on equal devices and 3 more." in text
    assert "m6" not in text
