"""Files of ``plan`` and ``solve``: several of one answer, each checked before the work."""

from pathlib import Path

import pytest

from experiments.cli import main
from experiments.console.exit_codes import EXIT_BAD_INPUT, EXIT_NO_PLAN
from solver import load_plan, save_problem
from tests.support.report_plans import modular


@pytest.fixture
def problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_problem(modular()[0], "problem.json")
    return "problem.json"


def test_one_answer_is_written_in_all_forms(problem, capsys):
    words = ["--out", "plan.json", "-o", "plan.html"]
    assert main(["solve", problem, *words]) == 0
    assert capsys.readouterr().err.splitlines() == ["wrote plan.json", "wrote plan.html"]
    assert load_plan("plan.json").device_order
    page = Path("plan.html").read_text(encoding="utf-8")
    assert "<h1>problem.json</h1>" in page
    # The command is there as a shell takes it.
    assert f"<pre>fxpartition solve problem.json {' '.join(words)}</pre>" in page


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--out plan.pdf", "plan.pdf ends in '.pdf'; write .json"),
        ("--out plan.json --out plan.htm", "plan.htm ends in '.htm'; write .json"),
        ("--out a.html --out ./a.html", "--out ./a.html is written twice; write another name"),
        ("--out problem.json", "--out problem.json is the file that is read"),
        ("--out no/folder/m", "there is no folder no/folder"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(problem, words, error, capsys):
    assert main(["solve", problem, *words.split()]) == EXIT_BAD_INPUT
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {error}")
    assert [path.name for path in Path().iterdir()] == ["problem.json"]


def test_without_a_plan_no_file_is_written(problem):
    assert main(["solve", problem, "--devices", "2x1KB", "--out", "plan.html"]) == EXIT_NO_PLAN
    assert not Path("plan.html").exists()
