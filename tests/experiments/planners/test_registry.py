"""The planners that can be named, and their list."""

import re

import pytest

from experiments.cli import main
from experiments.planners.registry import PLANNERS, check_planner
from tests.support.paths import ROOT
from tests.support.refusals import refused


def test_every_planner_says_what_it_is():
    for name, spec in PLANNERS.items():
        assert spec.name == name
        assert spec.description
        assert spec.source
        assert "\n" not in spec.description + spec.source
    assert len({spec.description for spec in PLANNERS.values()}) == len(PLANNERS)


def test_the_page_has_a_line_for_each():
    page = ROOT / "docs" / "planners.md"
    lines = re.findall(r"(?m)^\| `([\w-]+)` \|", page.read_text(encoding="utf-8"))
    assert lines == list(PLANNERS)


def test_only_solvers_prove():
    assert [name for name, spec in PLANNERS.items() if spec.proves] == [
        "auto",
        "ideal-dp",
        "coarse",
        "cp-sat",
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pipe-dream", "did you mean pipedream?"),
        ("Greedy", "did you mean greedy?"),
        ("zzz", "write one of auto, greedy, "),
        (3, "write one of auto, greedy, "),
    ],
)
def test_an_unknown_planner(name, hint):
    with refused(starts=f"planner {name!r} is unknown; {hint}"):
        check_planner(name)


def test_planners_are_listed(answer, capsys):
    assert [entry["name"] for entry in answer(["planners"])] == list(PLANNERS)
    assert main(["planners"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in PLANNERS)
    assert "a model, fxpartition[hf]" in table
    assert "a model, --recompute" in table
