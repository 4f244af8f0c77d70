"""Tests of numbers of things in words, and that messages about one thing are in the singular."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cli import main
from solver.model.quantities import counted

ONE_OPERATOR = """
import torch

def model():
    return torch.nn.ReLU(), (torch.ones(2),)
"""


def test_numbers_of_things() -> None:
    assert [counted(n, "stage") for n in (0, 1, 2000)] == ["0 stages", "1 stage", "2,000 stages"]
    assert [counted(n, "process", "processes") for n in (1, 2)] == ["1 process", "2 processes"]


def test_one_thing_is_in_the_singular(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "one_operator.py").write_text(ONE_OPERATOR)
    model = "one_operator:model"
    for words in (
        ["generate", "layered", "--operators", "1", "--devices", "1", "--out", "problem.json"],
        ["export", model, "--devices", "1MiB", "--out", "problem.json"],
        ["plan", model, "--devices", "1MiB", "--out", "plan.json"],
        ["split", model, "--plan", "plan.json", "--out", "stages"],
        ["hand-over", "plan.json", model, "--to", "programs", "--out", "programs"],
        [
            "compare",
            model,
            "--devices",
            "1MiB",
            "--max-devices",
            "1",
            "--planner",
            "greedy",
            "--out",
            "report",
        ],
    ):
        assert main(words) == 0
    output = capsys.readouterr()
    report = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "wrote problem.json: 1 operator, 1 device\n" in output.out
    assert "wrote programs: 1 program\n" in output.out
    assert "1 operator, 1 edge, " in report and "at most 1 device" in report
