"""Planners that a person names by import strings."""

import json
import sys

import pytest

from experiments.cli import main
from experiments.comparison.planner_row import plan_row
from experiments.comparison.records import CaseKey
from experiments.planners.registry import check_planner
from experiments.planners.task import PlanningTask
from solver import Device, Operator, PartitionError, PartitionProblem, SolveLimits, save_problem

MODULE = """
from experiments.planners.task import PlannerAnswer, PlannerSpec
from solver import PartitionPlan, solve

class Stop(BaseException):
    pass

def halves(problem):
    '''Put the first half first.

    And the second one second.
    '''
    names = [op.name for op in problem.operators]
    first, second = (device.name for device in problem.devices)
    return {name: first if 2 * at < len(names) else second for at, name in enumerate(names)}

by_number = lambda problem: {int(name): device for name, device in halves(problem).items()}
plan = lambda problem: PartitionPlan.from_assignment(problem, halves(problem))
solved = lambda problem: solve(problem)
round_trip = lambda problem: {"0": "x", "1": "y", "2": "x"}
nothing = lambda problem: None
half = lambda problem: {"0": "x"}
a_list = lambda problem: ["x", "y", "y"]

def printing(problem):
    print("mine")
    return halves(problem)

def raising(problem):
    return problem.nothing

def leaving(problem):
    raise SystemExit(3)

def stopping(problem):
    raise Stop("here")

def for_ever(problem):
    while True:
        pass

SPEC = PlannerSpec("spec", "of a test", "here", lambda task, limits: PlannerAnswer(reason="no"))
number = 3
"""
KEY = CaseKey("model", "equal", ("bottleneck",), "weights")
PROBLEM = PartitionProblem(
    (Operator("0", 3), Operator("1", 5, ("0",)), Operator("2", 7, ("1",))),
    (Device("x"), Device("y")),
)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The file of a module in the current folder."""
    path = tmp_path / "my_planners_of_test.py"
    path.write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    sys.modules.pop(path.stem, None)


def ask(name, seconds=10.0):
    task = PlanningTask(PROBLEM)
    return plan_row(KEY, task, f"my_planners_of_test:{name}", SolveLimits(seconds))


@pytest.mark.parametrize("name", ["halves", "by_number", "plan", "printing"])
def test_a_plan_or_a_mapping_is_judged(module, name):
    row = ask(name)
    assert (row.status, row.feasible, row.objective) == ("feasible", True, (8,))
    assert row.planner == f"my_planners_of_test:{name}"
    assert dict(row.plan.assignment) == {"0": "x", "1": "x", "2": "y"}


def test_proofs_of_others_are_not_believed(module):
    row = ask("solved")
    assert (row.status, row.objective, row.bound) == ("feasible", (8,), None)


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("round_trip", "unknown", "cycle"),
        ("nothing", "unknown", "it found no plan"),
        ("SPEC", "unknown", "no"),
        ("half", "failed", "the plan has no device for operator '1'"),
        ("raising", "failed", "AttributeError: 'PartitionProblem' object has no attribute"),
        ("stopping", "failed", "Stop: here"),
    ],
)
def test_whatever_else_happens_is_a_row(module, name, status, reason):
    row = ask(name)
    assert (row.status, row.feasible) == (status, False)
    assert reason in row.reason


def test_the_time_limit_ends_it(module):
    assert ask("for_ever", 0.1).status == "timed out"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my_planners_of_test:halvs", "has no 'halvs'; did you mean 'halves'"),
        ("my_planners_of_test:number", "is 3; name a function of a problem"),
        ("my_planners_of_test:", "is not an import string; write package.module:function"),
        ("no_such_module:plan", "cannot import no_such_module: ModuleNotFoundError"),
    ],
)
def test_what_is_no_planner_is_named(module, name, says):
    with pytest.raises(PartitionError, match=says):
        check_planner(name)
    assert main(["compare", "published:layer.gnmt_inference", "--planner", name]) == 2


def test_comparisons_and_sweeps_ask_it_anew_and_keep_what_is_ours(module, capsys, answer, refuses):
    save_problem(PROBLEM, "problem.json")
    sweep = module.with_name("sweep.toml")
    sweep.write_text(
        'models = ["problem.json"]\nplanners = ["chain"]\n[limits]\ntime_limit_s = 9\n'
    )
    own = "my_planners_of_test:halves"

    def found():
        words = ["compare", "problem.json", "--planner", f"chain,{own}", "--json"]
        assert main([*words, "--out", "report"]) == 0
        compared = json.loads(capsys.readouterr().out)["rows"]
        swept = answer(["sweep", "sweep.toml", "--out", "a.sqlite", "--planner", own])
        return {row["planner"]: row["objective"] for row in compared}, swept["done"]

    assert found() == ({"chain": [8], own: [8]}, 2)
    module.write_text(MODULE.replace("2 * at <", "3 * at <"))
    sys.modules.pop(module.stem)
    # Its answer is another one, and only it was asked again.
    assert found() == ({"chain": [8], own: [12]}, 1)
    sweep.write_text(f'models = ["problem.json"]\nplanners = ["{own}"]\n')
    refuses(["sweep", "sweep.toml", "--out", "a.sqlite"], f"on the command line: --planner {own}")
