"""The steps of a search as a table."""

import re

import pytest

from fx_bridge.presentation.summary import STEP_HEADER, step_cells, steps_text
from solver import step_names
from solver.evaluation.result import StepRecord


def record(step, start_s, seconds, incumbents, bounds, objective="bottleneck", number=1):
    return StepRecord(step, number, start_s, seconds, objective, *incumbents, *bounds)


LOG = (
    record("greedy", 0.0, 0.011, (None, 123_456_789), (0, 0)),
    record("borders", 0.011, 12.5, (123_456_789, 123_456_789), (0, 99_999_999)),
    record("branching", 12.52, 100.25, (123_456_789, 120_000_000), (99_999_999, 120_000_000)),
)


def test_a_step_has_a_line_and_the_last_line_is_their_total():
    header, rule, *lines, second_rule, total = steps_text(LOG).splitlines()
    assert header.split() == list(STEP_HEADER)
    assert set(rule) == {"-"} and second_rule == rule
    cells = [re.split(r" {2,}", line) for line in lines]
    assert cells == [
        ["greedy", "1", "0.00", "0.01", "- -> 123.5 ms", "0 ns"],
        ["borders", "1", "0.01", "12.50", "123.5 ms", "0 ns -> 100 ms"],
        ["branching", "1", "12.52", "100.25", "123.5 ms -> 120 ms", "100 ms -> 120 ms"],
    ]
    assert re.split(r" {2,}", total) == ["total", "112.76", "- -> 120 ms", "0 ns -> 120 ms"]


def test_columns_are_aligned():
    lines = [line for line in steps_text(LOG).splitlines() if set(line) != {"-"}]
    assert len({len(line) for line in lines}) == 1
    end = lines[0].index("seconds") + len("seconds")
    assert [line[end - 3] for line in lines[1:]] == ["."] * 4


@pytest.mark.parametrize(
    ("objective", "before", "after", "shown"),
    [
        ("latency", 4000, 3000, "4 us -> 3 us"),
        ("transfer", 4000, 3000, "4 kB -> 3 kB"),
        ("peak_memory", 905, 900, "90.5 % -> 90.0 %"),
        ("devices", 4, 3, "4 -> 3"),
        ("devices", 3, 3, "3"),
        ("devices", None, None, "-"),
    ],
)
def test_values_stand_in_the_unit_of_their_objective(objective, before, after, shown):
    assert step_cells(record("x", 0, 1, (before, after), (0, 0), objective))[-2] == shown


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


def test_the_widest_values_fit_into_100_columns():
    wide = {
        "bottleneck": (1_234_567_890_123, 1_134_567_890_123),
        "transfer": (999_499_999_999, 999_400_000_000),
        "peak_memory": (99_999, 99_998),
    }
    for objective, values in wide.items():
        log = [
            record(name, 99_999.99, 99_999.99, values, values, objective, 99)
            for name in step_names()
        ]
        assert max(map(len, steps_text(log).splitlines())) <= 100


def test_a_search_without_steps_says_so():
    assert steps_text(()) == "the search took no steps"
