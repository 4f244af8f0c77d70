"""Answers as people read them: a plan device by device, others beside it, steps of a search."""

import re
from dataclasses import replace
from xml.etree import ElementTree

from fx_bridge.presentation.summary import STEP_HEADER, steps_text, summary
from solver import (
    Device,
    Operator,
    PartitionPlan,
    PartitionProblem,
    SolveLimits,
    SolveStatus,
    solve,
)
from solver.evaluation.result import StepRecord, judge

LIMITS = SolveLimits(workers=1)


def chain_of_two(memory_bytes):
    operators = (
        Operator("a", 3000, storage_bytes=6, value_bytes=6, module="layers.0"),
        Operator("b", 5000, reads=("a",), storage_bytes=6, module="layers.1.mlp"),
    )
    devices = (Device("x", memory_bytes), Device("[bold]y"))
    return PartitionProblem(operators, devices)


def answers(problem, *solvers):
    return [solve(problem, LIMITS, solver=name) for name in solvers]


def test_the_last_answer_has_a_row_for_each_device_and_the_others_a_line():
    lines = summary(answers(chain_of_two(100), "greedy", "cp-sat")).splitlines()
    cells = [re.split(r" {2,}", line) for line in lines[:7]]
    assert cells[0] == ["device", "capacity", "operators", "memory", "load"]
    assert cells[2:6] == [
        ["x", "100 B", "1", "6 B (6.0 %)", "3 us"],
        ["", "layers.0"],
        ["[bold]y", "unlimited", "1", "12 B", "5 us"],
        ["", "layers.1"],
    ]
    assert set(lines[1]) == {"-"} and lines[6] == lines[1]
    seconds = r"\d+\.\d\d s"
    asked = rf"cp-sat: bottleneck 5 us, optimal in {seconds}, bound 5 us, gap 0 %"
    assert re.fullmatch(asked, lines[7])
    other = rf"greedy: bottleneck 8 us \(60\.00 % more\), feasible in {seconds}"
    assert re.fullmatch(other, lines[8])


def test_without_a_plan_the_reason_stands_there():
    problem = chain_of_two(1).replace(devices=(Device("x", 1),))
    proven = solve(problem, LIMITS, solver="cp-sat")
    told = f"cp-sat: infeasible after {proven.wall_time_s:.2f} s: {proven.reason}"
    assert summary([proven]) == told
    assert str(proven) == f"{told}; {proven.remedy}" and "diagnose(problem)" in proven.remedy
    still_open = replace(proven, status=SolveStatus.UNKNOWN, reason="it took too long")
    assert "a longer time limit" in str(still_open) and "diagnose" not in str(still_open)


def test_names_cannot_steer_the_terminal():
    device = Device("\x1b[31mred\n\u202eback\udcff")
    problem = chain_of_two(None).replace(devices=(device,))
    text = summary(answers(problem, "greedy"))
    assert "\\x1b[31mred\\n\\u202eback\\udcff" in text
    assert all(char == "\n" or char.isprintable() for char in text)
    text.encode()


def record(step, start_s, seconds, incumbents, bounds, objective="bottleneck", number=1):
    return StepRecord(step, number, start_s, seconds, objective, *incumbents, *bounds)


def test_a_step_has_a_line_and_the_last_line_is_their_total():
    log = (
        record("greedy", 0.0, 0.011, (None, 123_456_789), (0, 0)),
        record("borders", 0.011, 12.5, (123_456_789, 123_456_789), (0, 99_999_999)),
        record("branching", 12.52, 100.25, (123_456_789, 120_000_000), (99_999_999, 120_000_000)),
    )
    header, rule, *lines, second_rule, total = steps_text(log).splitlines()
    assert header.split() == list(STEP_HEADER)
    assert set(rule) == {"-"} and second_rule == rule
    assert [re.split(r" {2,}", line) for line in lines] == [
        ["greedy", "1", "0.00", "0.01", "- -> 123.5 ms", "0 ns"],
        ["borders", "1", "0.01", "12.50", "123.5 ms", "0 ns -> 100 ms"],
        ["branching", "1", "12.52", "100.25", "123.5 ms -> 120 ms", "100 ms -> 120 ms"],
    ]
    assert re.split(r" {2,}", total) == ["total", "112.76", "- -> 120 ms", "0 ns -> 120 ms"]
    assert steps_text(()) == "the search took no steps"


def test_steps_of_several_objectives_stand_under_their_names():
    log = (
        record("greedy", 0, 1, (None, 4), (1, 1), "devices"),
        record("borders", 1, 2, (4, 3), (1, 3), "devices"),
        record("borders", 3, 4, (5000, 4000), (0, 4000), "transfer", number=2),
    )
    lines = [re.split(r" {2,}", line) for line in steps_text(log).splitlines()]
    firsts = [line[0] for line in lines]
    assert firsts[2:-2] == ["devices:", "greedy", "borders", "transfer:", "borders"]
    # Values of different objectives have no total.
    assert lines[-1] == ["total", "7.00"]


def test_a_notebook_shows_names_as_text_and_a_plan_that_is_none_by_its_reason():
    problem = chain_of_two(8).replace(devices=(Device("<b>&x", 8), Device("y")))
    shown = judge("greedy", problem, PartitionPlan({"a": "<b>&x", "b": "y"}, ("<b>&x", "y")), 0.0)
    table, picture = ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")
    assert table.text == str(shown)
    assert "0: <b>&x" in [item.text for item in picture]
    infeasible = solve(chain_of_two(1).replace(devices=(Device("x", 1),)), LIMITS)
    assert infeasible._repr_html_() == f"<pre>{infeasible}</pre>"
