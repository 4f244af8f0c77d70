from dataclasses import replace

import pytest

from experiments.comparison.records import CaseKey, PlannerRow
from experiments.sweep.progress import SweepProgress

ROW = PlannerRow(
    CaseKey("[bold]<script>", "../../\x1b[31mx", ("bottleneck", "transfer"), "inference"),
    "auto",
    "optimal",
    objective=(1500, 3),
    gap=0.0,
    wall_time_s=0.25,
    answered_by="cp-sat",
)


def show():
    with SweepProgress() as progress:
        progress.prepare(1)
        progress.prepared("m")
        progress.begin(5, 2)
        progress.done(ROW)
        progress.done(replace(ROW, status="timed out", objective=None, reason="no answer\n<b>"))


def test_lines_are_plain_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    show()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "[1/1] m: prepared",
        "5 cells, 3 of them done before",
        "[4/5] [bold]<script> on ../../\\x1b[31mx devices, bottleneck,transfer, inference: "
        "auto (cp-sat) optimal, bottleneck 1.5 us, gap 0 %, 0.25 s",
        "[5/5] [bold]<script> on ../../\\x1b[31mx devices, bottleneck,transfer, inference: "
        "auto (cp-sat) timed out, 0.25 s: no answer\\n<b>",
    ]


@pytest.mark.parametrize("width", ["80", "40"])
def test_a_terminal_has_a_bar_with_the_time_that_is_left(capsys, monkeypatch, width):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", width)
    show()
    err = capsys.readouterr().err
    assert "4/5" in err
    assert "left:" in err
    assert "[bold]<script>" in err.replace("\n", "")
    # What a model calls itself never reaches the terminal as a command.
    assert "\x1b[31mx" not in err
