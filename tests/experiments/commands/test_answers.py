"""What a command does with its answer: the file first, then the words, then the exit code."""

import json
from dataclasses import replace

import pytest
import typer

import solver
from experiments.commands import answers
from experiments.commands.answers import finish, finish_study, result_json, solve_all
from experiments.commands.plan_outputs import PlanOutputs
from experiments.comparison.records import Study
from experiments.console.exit_codes import EXIT_NO_PLAN, EXIT_TIME_OUT
from experiments.console.progress import ProgressLine
from fx_bridge.presentation.summary import steps_text
from solver import Device, Operator, PartitionProblem, SolveLimits, diagnose, load_plan, solve
from solver.evaluation.result import StepRecord
from tests.support.studies import steps

LIMITS = SolveLimits(time_limit_s=5, workers=1)
NOTHING = PlanOutputs({}, "m")


def problem(memory_bytes):
    operators = (
        Operator("a\x1b[2J", 10, value_bytes=4, storage_bytes=4),
        Operator("b", 20, reads=("a\x1b[2J",), value_bytes=4, storage_bytes=4, is_output=True),
    )
    return PartitionProblem(operators, (Device("x", memory_bytes), Device("y", memory_bytes)))


def test_files_are_written_before_anything_is_printed(tmp_path, monkeypatch):
    given, path, report = problem(100), tmp_path / "plan.json", tmp_path / "report"

    def gone(*_):
        raise BrokenPipeError

    monkeypatch.setattr(answers, "print_json", gone)
    outputs = PlanOutputs({str(path): "plan"}, "m")
    with pytest.raises(BrokenPipeError):
        finish(given, [solve(given, LIMITS)], LIMITS, outputs, as_json=True)
    assert set(load_plan(path).assignment) == {"a\x1b[2J", "b"}
    with pytest.raises(BrokenPipeError):
        finish_study(Study((), (), (), (), LIMITS, (), 0.0), str(report), as_json=True)
    assert (report / "results.json").is_file()


def test_the_asked_answer_is_the_last_and_the_first_its_baseline(capsys):
    given = problem(100)
    results = [solve(given, LIMITS, solver=name) for name in ("greedy", "ideal-dp")]
    finish(given, results, LIMITS, NOTHING, as_json=True)
    answer = json.loads(capsys.readouterr().out)
    baseline = answer.pop("baseline")
    expected = [json.loads(json.dumps(result_json(given, result))) for result in results]
    assert [baseline, answer] == expected
    assert answer["objectives"] == {"bottleneck": results[1].objective}
    finish(given, results[1:], LIMITS, NOTHING, as_json=True)
    assert json.loads(capsys.readouterr().out) == expected[1]


@pytest.mark.parametrize("as_json", [False, True])
def test_no_plan_is_explained(tmp_path, capsys, as_json):
    given = problem(3)
    path = tmp_path / "plan.json"
    outputs = PlanOutputs({str(path): "plan"}, "m")
    with pytest.raises(typer.Exit) as ended:
        finish(given, [solve(given, LIMITS)], LIMITS, outputs, as_json)
    assert ended.value.exit_code == EXIT_NO_PLAN
    printed = capsys.readouterr()
    assert printed.err.startswith("no plan exists: ")
    explained = json.loads(printed.out)["diagnosis"]["text"] if as_json else printed.err
    assert "too few" in explained
    assert "\x1b" not in printed.err + printed.out
    assert not path.exists()


def test_a_search_that_found_nothing_rules_nothing_out(capsys):
    given = problem(3)
    with pytest.raises(typer.Exit) as ended:
        finish(given, [solve(given, LIMITS, solver="greedy")], LIMITS, NOTHING, as_json=False)
    assert ended.value.exit_code == EXIT_TIME_OUT
    assert capsys.readouterr().err.startswith("no plan found, and none ruled out: device 'x'")


def test_steps_are_printed_after_the_answer_that_was_asked_for_and_are_in_json(capsys):
    given = problem(100)
    results = [solve(given, LIMITS, solver=name) for name in ("greedy", "ideal-dp")]
    results[1] = replace(results[1], log=steps(20))
    finish(given, results, LIMITS, NOTHING, as_json=False)
    answer = capsys.readouterr().out
    assert "borders" not in answer
    finish(given, results, LIMITS, NOTHING, as_json=False, with_steps=True)
    assert capsys.readouterr().out == f"{answer}\n{steps_text(steps(20))}\n"
    for with_steps in (False, True):
        finish(given, results, LIMITS, NOTHING, as_json=True, with_steps=with_steps)
        log = json.loads(capsys.readouterr().out)["log"]
        assert [StepRecord(**step) for step in log] == list(steps(20))


def test_only_the_solver_that_was_asked_for_leaves_out_steps(monkeypatch):
    told = []

    def search(problem, limits, *, solver, without):
        told.append((solver, without))
        return solve(problem, limits, solver=solver)

    monkeypatch.setattr(solver, "solve", search)
    progress = ProgressLine(quiet=True)
    found = solve_all(problem(100), ("greedy", "ideal-dp"), LIMITS, "m", progress, ("borders",))
    assert told == [("greedy", ()), ("ideal-dp", ("borders",))]
    assert [result.solver for result in found] == ["greedy", "ideal-dp"]


def test_one_limit_counts_for_all_searches(monkeypatch):
    told = []

    def slow(given, limits, **named):
        told.append(limits.time_limit_s)
        return replace(solve(given, LIMITS, **named), wall_time_s=2.0)

    def explained(given, limits, **named):
        told.append(limits.time_limit_s)
        return diagnose(given, LIMITS, **named)

    monkeypatch.setattr(solver, "solve", slow)
    monkeypatch.setattr(solver, "diagnose", explained)
    given = problem(1)
    results = solve_all(given, ("greedy", "auto"), LIMITS, "model", ProgressLine(quiet=True))
    with pytest.raises(typer.Exit):
        finish(given, results, LIMITS, NOTHING, as_json=True)
    assert told == [5.0, 3.0, 1.0]
    assert LIMITS.after(7.0).time_limit_s == 0.05
    # Searches to come share the rest.
    assert SolveLimits(20.0).after(8.0, searches=3).time_limit_s == 4.0
    deterministic = replace(LIMITS, deterministic=True)
    assert deterministic.after(4.0) == deterministic
