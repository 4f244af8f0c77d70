"""Tests of what a study is said to show."""

from experiments.comparison.records import Case, EquivalenceRow, ModelRecord
from experiments.reports.content.findings import findings
from tests.support.studies import key, row, study


def test_it_says_what_is_proven():
    cases = [key(name) for name in "abc"]
    rows = [row("auto", 10, case=cases[0], bound=10), row("auto", 10, case=cases[1], bound=9)]
    rows += [row("auto", case=cases[2], status="infeasible"), row("chain", 12, case=cases[0])]
    assert findings(study(*rows)) == (
        "The exact solver (auto) proves its plan optimal in 1 of 3 cases, and that no plan exists "
        "in 1.",
    )


def test_it_hides_nothing():
    broken = (ModelRecord(model="p", reason="no such luck"),)
    impossible = Case(key("q"), None, "devices too small.")
    found = findings(
        study(
            row("chain", 100),
            row("auto", 110, bound=55),
            row("chain", 10, case=key("n")),
            row("auto", case=key("n"), status="infeasible"),
            checks=(EquivalenceRow(key(), "auto", False, 0.5),),
            models=broken,
            cases=(impossible,),
        )
    )
    assert found[1:] == (
        "The exact solver is WORSE than chain in m on equal devices.",
        "chain has a plan, and the exact solver NONE, in n on equal devices.",
        "0 of 1 split model compute what the model computes.",
        "NOT EQUAL: m on equal devices, split by auto: largest error 0.5.",
        "q on equal devices could not be compared: devices too small.",
        "p could not be compared: no such luck.",
    )


def test_every_objective_has_sentences_of_its_own():
    other = key(objective=("transfer", "latency"))
    first, second = findings(study(row("auto", 2), row("auto", 3, 1, case=other)))
    assert first.startswith("Objective bottleneck: The exact solver (auto)")
    assert second.startswith("Objective transfer, latency: The exact solver (auto)")


def test_without_an_exact_solver_nothing_is_claimed():
    (said,) = findings(study(row("greedy", 3), row("chain", 2)))
    assert said.startswith("No exact solver was asked")
    assert findings(study()) == ()


def test_answers_of_several_seeds_are_not_called_cases():
    (said,) = findings(study(*(row("auto", 5, seed=seed) for seed in (0, 1))))
    assert said.endswith("in 0 of 2 answers.")


def test_many_cases_are_named_in_part_and_counted():
    keys = [key(f"m{index}")._replace(memory_model="training") for index in range(9)]
    rows = [
        row(name, value, case=case) for case in keys for name, value in (("chain", 4), ("auto", 5))
    ]
    said = findings(study(*rows))[1]
    assert said.endswith("m5 on equal devices in training and 3 more.")
    assert "m6" not in said
