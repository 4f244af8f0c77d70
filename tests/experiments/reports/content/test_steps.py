"""The table of steps of a report."""

from dataclasses import replace

from experiments.reports.content.steps import MOST_STEPS, steps_table
from solver.evaluation.result import StepRecord
from tests.support.studies import row, steps


def test_each_search_has_its_steps_in_their_order():
    rows = [row("greedy", 9), row("auto", 9, log=steps(9)), row("cp-sat", 9, log=steps(9)[1:])]
    table = steps_table(rows)
    assert table.rows == (
        ("auto", "bottleneck", "greedy", "1", "0.00", "0.25", "- -> 9 ns", "0 ns"),
        ("auto", "bottleneck", "borders", "1", "0.25", "1.50", "9 ns", "0 ns -> 9 ns"),
        ("cp-sat", "bottleneck", "borders", "1", "0.25", "1.50", "9 ns", "0 ns -> 9 ns"),
    )
    assert len(table.header) == len(table.rows[0])


def test_of_many_steps_the_longest_are_shown_and_the_rest_is_summed():
    """Tests with durations of 1 to 2.96 s in steps of 0.04 s, the longest in the middle."""
    count = MOST_STEPS + 20
    durations_s = [1 + 0.04 * ((index * 7) % count) for index in range(count)]
    log = tuple(
        StepRecord(f"s{index}", 1, 0.0, seconds, "bottleneck", 9, 9, 1, 1)
        for index, seconds in enumerate(durations_s)
    )
    *shown, rest = steps_table([row("auto", 9, log=log)]).rows
    longest = sorted(durations_s)[-MOST_STEPS:]
    expected = [f"s{index}" for index, seconds in enumerate(durations_s) if seconds in longest]
    assert [cells[2] for cells in shown] == expected
    assert rest[:3] == ("auto", "-", "20 shorter steps")
    assert rest[5] == f"{sum(durations_s) - sum(longest):.2f}"


def test_equal_steps_are_counted_each():
    same = steps(9)[0]
    table = steps_table([row("auto", 9, log=(replace(same),) * 3)])
    assert len(table.rows) == 3


def test_searches_that_tell_nothing_have_no_table():
    assert steps_table([row("greedy", 9)]).rows == ()
