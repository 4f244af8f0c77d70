"""Tests of the table on the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from experiments.comparison.records import Case, ModelRecord, Study
from experiments.reports.formats.terminal import study_table, study_tables
from tests.support.studies import key, row, study


def shown(found: Study, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(study_table(found, width))
    return stream.getvalue()


def test_names_are_not_markup_on_the_terminal() -> None:
    case = key("my[bold]model[/bold][/]")
    broken = ModelRecord(model="[/oops]", reason="[red]reason[/wrong]")
    text = shown(study(row("greedy", 2, case=case), models=(broken,)), 250)
    assert case.model in text
    assert "[/oops]" in text
    assert "[red]reason[/wrong]" in text


def test_names_cannot_steer_the_terminal() -> None:
    name = "\x1b[31m[bold]a|b\n<script>&lt;../../x\u202e\udcff"
    text = shown(study(row("greedy", 5, case=key(name, name))), 300)
    assert "\\x1b[31m[bold]a|b\\n<script>" in text
    assert "\\u202e\\udcff" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 110, 160])
def test_the_table_fits_the_terminal(width: int) -> None:
    case = key("llama3-70b", "unequal")
    exact = row("auto", 12_345_678, case=case, bound=12_345_678, answered_by="ideal-dp")
    text = shown(study(row("greedy", case=case, reason="too big"), exact), width)
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    assert any("llama3-70b" in line for line in lines)
    done = next(line for line in lines if "auto" in line)
    for cell in ("optimal", "12.35 ms", "0 %", "1.00 s"):
        assert cell in done, done
    # A narrow terminal folds it between the words.
    assert ("(ideal-dp)" if width == 80 else "auto (ideal-dp)") in text


def test_a_name_stands_once_above_its_rows() -> None:
    rows = [
        row(planner, 1, case=key(model, devices))
        for model in ("first", "second")
        for devices in ("equal", "unequal")
        for planner in ("greedy", "auto")
    ]
    lines = shown(study(*rows), 160).splitlines()
    assert sum("first" in line for line in lines) == 1
    assert sum("second" in line for line in lines) == 1
    assert sum("unequal" in line for line in lines) == 2
    assert sum("greedy" in line for line in lines[3:]) == 4


@pytest.mark.parametrize("width", range(90, 170))
def test_nothing_is_folded_that_need_not_be(width: int) -> None:
    case = key("model", "500KiB,300KiB,200KiB")
    rows = [row(planner, 12_345_678, case=case) for planner in ("greedy", "chain", "auto")]
    lines = shown(study(*rows), width).splitlines()
    assert sum("12.35 ms" in line for line in lines) == 3
    # A blank line, the header, its rule, three rows, a blank line.
    assert len(lines) == 7


def test_many_planners_are_told_by_case_and_by_planner() -> None:
    """Tests that an answer of one of many has no line of its own, and narrow terminals fit."""
    planners = ["greedy", "chain", "auto", *(f"peer-{i}" for i in range(5))]
    cases = [key("first", "equal"), key("second", "equal")]
    rows = [
        row(planner, 10 if planner == "auto" else 20, case=case, bound=10)
        for case in cases
        for planner in planners
    ]
    few = study(*(each for each in rows if not each.planner.startswith("peer")))
    assert len(study_tables(few, 160)) == 1
    many = study(*rows, cases=tuple(Case(case) for case in cases))
    by_case, by_planner = study_tables(many, 160)
    assert by_case.row_count == len(cases)
    # With the best of all that prove nothing.
    assert by_planner.row_count == len(planners) + 1
    for width in (80, 120, 160):
        stream = io.StringIO()
        for table in study_tables(many, width):
            Console(file=stream, width=width).print(table)
        text = stream.getvalue()
        # The narrowest folds names.
        assert width == 80 or all(name in text for name in ("first", "second", *planners))
        assert max(len(line) for line in text.splitlines()) <= width
