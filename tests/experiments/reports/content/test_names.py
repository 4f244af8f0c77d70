"""Tests that no name of a model leads out of the folder of a report, or to a file twice."""

import re

import pytest

from experiments.comparison.records import Case
from experiments.reports.content.names import name_files, slug
from solver import PartitionPlan
from tests.support.studies import HOSTILE as NASTY
from tests.support.studies import key, row, small_problem, study

HOSTILE = (
    *NASTY,
    "..\\..\\x",
    "/etc/passwd",
    "CON",
    ".",
    "..",
    "",
    "~",
    "$(rm -rf .)",
    "é" * 500,
    "x" * 5000,
)


@pytest.mark.parametrize("text", HOSTILE)
def test_slugs_are_harmless(text):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug(text))
    assert len(slug(text)) <= 40


def test_no_file_is_given_twice():
    """Tests models and planners whose slugs are the same, and one planner with several seeds."""
    plans = [PartitionPlan({"a": name, "b": name}, (name,)) for name in "uvwxyz"]
    keys = [key(text, device_set) for text in HOSTILE for device_set in ("a b", "a-b")]
    planners = ("auto", "Auto", "auto 2", "../auto", "auto-seed-1", "auto")
    rows = [
        row(planner, 1, case=case, plan=plan, seed=seed)
        for case in keys
        for seed, (planner, plan) in enumerate(zip(planners, plans, strict=True))
    ]
    cases = tuple(Case(case, small_problem()) for case in keys)
    files = name_files(study(*rows, row("none", case=keys[0]), cases=cases))
    given = [*files.problems.values(), *files.plans.values()]
    assert len(rows) not in files.plans
    assert len(set(given)) == len(given) == len(keys) * (1 + len(planners))
    assert all(re.fullmatch(r"(problems|plans)/[a-z0-9-]+\.json\.gz", str(n)) for n in given)
    assert all(len(str(name)) < 160 for name in given)


def test_planners_with_one_plan_share_its_file():
    plan = PartitionPlan({"a": "x", "b": "x"}, ("x",))
    rows = [row("chain", 1, plan=plan), row("auto", 1, plan=plan), row("cp-sat", 1)]
    files = name_files(study(*rows, cases=(Case(key(), small_problem()),)))
    assert files.plans == {0: "plans/m-equal-chain.json.gz", 1: "plans/m-equal-chain.json.gz"}


def test_names_stay_when_more_cases_come():
    keys = [key(f"model {number}") for number in range(12)] + [key("model-3")]
    cases = tuple(Case(case, small_problem()) for case in keys)
    first, last = (name_files(study(cases=cases[:count])).problems for count in (4, 13))
    assert first == {case: last[case] for case in keys[:4]}
    assert len(set(last.values())) == 13
