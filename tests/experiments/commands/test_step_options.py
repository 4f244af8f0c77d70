"""The options --steps and --without of the commands that search."""

import json

import pytest

from experiments.cli import main
from fx_bridge.presentation.summary import steps_text
from solver import Device, Operator, PartitionProblem, save_problem, step_names
from solver.evaluation.result import StepRecord

NAME = step_names()[0]


@pytest.fixture
def saved(tmp_path):
    operators = [
        Operator(f"op{i}", 1000 + i, (f"op{i - 1}",) if i else (), value_bytes=5, storage_bytes=5)
        for i in range(6)
    ]
    path = tmp_path / "problem.json"
    save_problem(PartitionProblem(tuple(operators), (Device("x"), Device("y"))), path)
    return str(path)


@pytest.mark.parametrize("command", ["solve", "plan"])
def test_a_step_is_left_out_and_the_others_are_printed(saved, command, capsys):
    words = [command, saved, "--without", NAME]
    assert main([*words, "--json"]) == 0
    log = [StepRecord(**step) for step in json.loads(capsys.readouterr().out)["log"]]
    assert NAME not in [step.step for step in log]
    assert main(words) == 0
    answer = capsys.readouterr().out
    assert main([*words, "--steps"]) == 0
    shown, table = capsys.readouterr().out.split("\n\n")
    # The second run of the command has times of its own.
    assert len(shown.splitlines()) == len(answer.splitlines())
    assert table.splitlines()[0] == steps_text(log).splitlines()[0]


def test_compare_leaves_steps_out_of_planners_that_prove(saved, capsys):
    words = ["--planner", "greedy,auto", "--time-limit", "2", "--without", NAME]
    assert main(["compare", saved, *words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["planner"], row["without"]) for row in rows] == [("greedy", []), ("auto", [NAME])]
    assert NAME not in [step["step"] for step in rows[1]["log"]]


@pytest.mark.parametrize("command", ["solve", "plan", "compare"])
def test_unknown_steps_are_refused_in_one_line(saved, command, capsys):
    assert main([command, saved, "--without", f"{NAME},nothing at all"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --without: step 'nothing at all' is unknown; write one of ")
    assert len(error.splitlines()) == 1
