"""Tests of the table on the terminal."""

from __future__ import annotations

import pytest

from experiments.comparison.records import ModelRecord
from experiments.reports.formats.terminal import study_lines
from tests.support.studies import key, row, study


def shown(found):
    return "\n".join(study_lines(found))


def test_names_cannot_steer_the_terminal():
    name = "\x1b[31m[bold]a|b\n<script>&lt;../../x\u202e\udcff"
    text = shown(study(row("greedy", 5, case=key(name, name))))
    assert "\\x1b[31m[bold]a|b\\n<script>" in text
    assert "\\u202e\\udcff" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 110, 160])
def test_the_table_fits_the_terminal(width, monkeypatch):
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
