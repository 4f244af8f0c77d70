"""Answers side by side."""

from dataclasses import replace
from xml.etree import ElementTree

from fx_bridge.presentation.summary import summary
from solver import (
    Device,
    Operator,
    PartitionPlan,
    PartitionProblem,
    SolveLimits,
    SolveStatus,
    solve,
)
from solver.evaluation.result import judge

LIMITS = SolveLimits(workers=1)


def chain_of_two(memory_bytes):
    operators = (
        Operator("a", 3000, storage_bytes=6, value_bytes=6),
        Operator("b", 5000, reads=("a",), storage_bytes=6),
    )
    devices = (Device("x", memory_bytes), Device("[bold]y"))
    return PartitionProblem(operators, devices)


def test_a_table_shows_every_device_under_every_answer():
    """Tests that names come as they are, and that capacities, loads and objectives are there."""
    problem = chain_of_two(100)
    text = summary(problem, [solve(problem, LIMITS, solver=name) for name in ("greedy", "cp-sat")])
    header, columns, _, first, second, _, total, *sentences = text.splitlines()
    assert header.split() == ["greedy", "cp-sat"]
    assert columns.split() == ["device", "capacity", *["operators", "memory", "load"] * 2]
    assert first.startswith("x ") and "100 B" in first
    assert second.startswith("[bold]y ") and "unlimited" in second
    assert total.split() == ["bottleneck", "8", "us", "5", "us"]
    assert "cp-sat: optimal" in sentences[1] and "bound 5 us, gap 0 %" in sentences[1]
    assert sentences[-1] == "greedy's bottleneck is 60.0% above cp-sat's"


def test_an_equal_baseline_is_said_to_be_equal():
    """Tests that no gain is claimed where there is none."""
    problem = chain_of_two(None).replace(devices=(Device("x"),))
    text = summary(problem, [solve(problem, LIMITS, solver=name) for name in ("greedy", "cp-sat")])
    assert text.endswith("greedy reaches the same bottleneck")


def test_without_a_plan_the_reason_stands_there():
    """Tests that an infeasible problem is shown with its reason, and no numbers."""
    problem = chain_of_two(1).replace(devices=(Device("x", 1),))
    result = solve(problem, LIMITS, solver="cp-sat")
    text = summary(problem, [result])
    assert f"cp-sat: infeasible after {result.wall_time_s:.2f} s: proven: no plan fits" in text
    assert "gap" not in text


def test_an_answer_that_breaks_limits_is_called_that():
    """Tests that an infeasible heuristic answer is shown with what it breaks."""
    problem = chain_of_two(1).replace(devices=(Device("x", 1), Device("y", 1)))
    text = summary(problem, [solve(problem, LIMITS, solver="greedy")])
    assert "greedy: its plan breaks limits: device" in text


def test_of_many_broken_limits_the_first_is_told_and_the_others_are_counted():
    operators = tuple(Operator(f"op{i}", 1, storage_bytes=9, value_bytes=9) for i in range(9))
    problem = PartitionProblem(operators, tuple(Device(f"d{i}", 1) for i in range(9)))
    plan = PartitionPlan({f"op{i}": f"d{i}" for i in range(9)}, tuple(f"d{i}" for i in range(9)))
    given = judge("greedy", problem, plan, 0.0)
    line = summary(problem, [given]).splitlines()[-1]
    first = "device 'd0' needs 9 bytes but has 1: 8 too few"
    assert line == f"greedy: its plan breaks limits: {first}; and 8 more"
    assert given.reason.count("too few") == 9


def test_one_answer_is_printed_as_in_a_summary():
    problem = chain_of_two(100)
    result = solve(problem, LIMITS, solver="cp-sat")
    assert str(result) == summary(problem, [result])
    broken = judge("greedy", problem, PartitionPlan({"a": "x", "b": "x"}, ("x",)), 0.0)
    assert str(broken) == summary(problem, [broken])


def test_an_answer_without_a_plan_says_what_to_do():
    """Tests that a proof offers diagnose and no time, and an open search time."""
    problem = chain_of_two(1).replace(devices=(Device("x", 1),))
    proven = solve(problem, LIMITS)
    assert proven.status is SolveStatus.INFEASIBLE
    assert "\n" not in str(proven)
    assert proven.reason in str(proven) and "ask solver.diagnose(problem)" in str(proven)
    assert "time limit" not in str(proven)
    still_open = replace(proven, status=SolveStatus.UNKNOWN, reason="it took too long")
    assert "a longer time limit" in str(still_open) and "diagnose" not in str(still_open)


def test_a_notebook_shows_the_table_and_the_stages():
    """Tests that names are escaped, that bars are parts of what there is, and no tag is open."""
    problem = chain_of_two(8).replace(devices=(Device("<b>&x", 8), Device("y")))
    plan = PartitionPlan({"a": "<b>&x", "b": "y"}, ("<b>&x", "y"))
    shown = judge("greedy", problem, plan, 0.0)
    page = ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")
    table, picture = page
    assert table.text == str(shown)
    words = [item.text for item in picture if item.tag.endswith("text")]
    assert words == [
        "time of the stage",
        "memory of its device",
        *("0: <b>&x", "3 us", "6 B"),
        *("1: y", "5 us", "12 B"),
    ]
    widths = [float(item.get("width")) for item in picture if item.tag.endswith("rect")]
    assert widths == [120, 150, 200, 200]
    tight = problem.replace(devices=(Device("<b>&x", 8), Device("y", 4)))
    assert judge("greedy", tight, plan, 0.0)._repr_html_().count("#c44") == 1
    infeasible = solve(chain_of_two(1).replace(devices=(Device("x", 1),)), LIMITS)
    assert infeasible._repr_html_() == f"<pre>{infeasible}</pre>"


def test_several_stages_of_a_device_are_counted():
    problem = chain_of_two(100).replace(chunks_per_device=2)
    plan = PartitionPlan({"a": "x", "b": "x"}, ("x",), {"b": 1})
    text = summary(problem, [judge("greedy", problem, plan, 0.0)])
    assert "2 in 2 stages" in text


def test_names_cannot_steer_the_terminal():
    """Tests that escape sequences, line breaks and what is no text are shown, not obeyed."""
    device = Device("\x1b[31mred\n\u202eback\udcff")
    problem = chain_of_two(None).replace(devices=(device,))
    text = summary(problem, [solve(problem, LIMITS, solver="greedy")])
    assert "\\x1b[31mred\\n\\u202eback\\udcff" in text
    assert all(char == "\n" or char.isprintable() for char in text)
    text.encode()
