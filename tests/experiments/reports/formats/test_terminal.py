"""Tests of the table on the terminal."""

from __future__ import annotations

import pytest

from experiments.comparison.records import Case, ModelRecord, Study
from experiments.reports.formats.terminal import study_lines
from tests.support.studies import key, row, study


def shown(found: Study) -> str:
    return "\n".join(study_lines(found))


def test_names_cannot_steer_the_terminal() -> None:
    name = "\x1b[31m[bold]a|b\n<script>&lt;../../x\u202e\udcff"
    text = shown(study(row("greedy", 5, case=key(name, name))))
    assert "\\x1b[31m[bold]a|b\\n<script>" in text
    assert "\\u202e\\udcff" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 110, 160])
def test_the_table_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    case = key("llama3-70b", "500KiB,300KiB,200KiB")
    exact = row("auto", 12_345_678, case=case, bound=12_345_678, answered_by="ideal-dp")
    broken = ModelRecord(model="other", reason="there is no such file")
    text = shown(study(row("greedy", case=case, reason="too big"), exact, models=(broken,)))
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    assert any("llama3-70b" in line for line in lines)
    done = next(line for line in lines if "auto" in line)
    for cell in ("auto (ideal-", "optimal", "12.35 ms", "0 %", "1.00 s"):
        assert cell in done, done
    assert "other: failed: there is no such file" in lines


def test_a_name_stands_once_above_its_rows() -> None:
    rows = [
        row(planner, 1, case=key(model, devices))
        for model in ("first", "second")
        for devices in ("equal", "unequal")
        for planner in ("greedy", "auto")
    ]
    lines = shown(study(*rows)).splitlines()
    assert sum("first" in line for line in lines) == 1
    assert sum("second" in line for line in lines) == 1
    assert sum("unequal" in line for line in lines) == 2
    assert sum("greedy" in line for line in lines[3:]) == 4


@pytest.mark.parametrize("width", [80, 120, 160])
def test_many_planners_are_told_by_case_and_by_planner(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that an answer of one of many has no line of its own, and narrow terminals fit."""
    monkeypatch.setenv("COLUMNS", str(width))
    planners = ["greedy", "chain", "auto", *(f"peer-{i}" for i in range(5))]
    cases = [key("first", "equal"), key("second", "equal")]
    rows = [
        row(planner, 10 if planner == "auto" else 20, case=case, bound=10)
        for case in cases
        for planner in planners
    ]
    by_case, by_planner = shown(study(*rows, cases=tuple(map(Case, cases)))).split("\n\n")
    assert all(f"\n{case.model} " in by_case for case in cases)
    assert all(f"\n{name} " in by_planner for name in planners)
    assert max(len(line) for line in [*by_case.splitlines(), *by_planner.splitlines()]) <= width
