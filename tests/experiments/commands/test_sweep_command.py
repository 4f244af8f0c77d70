import json
import os
import signal
import subprocess
import sys

import pytest

from experiments.cli import main
from experiments.sweep.settings import read_sweep
from experiments.sweep.store import load_study
from tests.support.documents import told_keys
from tests.support.paths import ROOT

SWEEP = """
models = [{generate = "layered", operators = 8, width = 2, devices = 2, slack = 400, name = "g"}]
planners = ["greedy", "auto"]
[limits]
workers = 1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path


def test_a_sweep_is_run_once_and_reported(folder, capsys, answer):
    assert main(["sweep", "sweep.toml", "--out", "r.sqlite", "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "2 cells of 1 case: 1 feasible, 1 optimal"
    assert out.splitlines()[1].startswith("2 done in ")
    assert err.splitlines()[-1] == "wrote r.sqlite"
    found = answer(["sweep", "sweep.toml", "-o", "r.sqlite"])
    assert set(found) == told_keys("### `sweep`")
    assert (found["cells"], found["present"], found["done"], found["failed"]) == (2, 2, 0, 0)
    assert found["by_status"] == {"feasible": 1, "optimal": 1}
    assert found["wall_time_s"] > 0
    assert len(answer(["report", "r.sqlite"])["rows"]) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sweep.toml", "--out", "sweep.toml"], "--out sweep.toml is the file that is read"),
        (["sweep.toml", "--out", "no/r.sqlite"], "there is no folder no"),
        (["sweep.toml", "--out", "r.sqlite", "--model", "mpl"], "did you mean mlp"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(folder, refuses, arguments, says):
    refuses(["sweep", *arguments], says)
    assert sorted(path.name for path in folder.iterdir()) == ["sweep.toml"]


def test_a_sweep_without_any_problem_says_why(folder, capsys):
    (folder / "bad.toml").write_text(
        'models = ["published:layer.gnmt_inference"]\ndevices = ["2x1GiB"]\n'
    )
    assert main(["sweep", "bad.toml", "--out", "r.sqlite", "--json"]) == 2
    out, err = capsys.readouterr()
    assert list(json.loads(out)["reasons"]) == [
        "published:layer.gnmt_inference on 2x1GiB devices, bottleneck, weights"
    ]
    assert "no problem: " in err
    assert err.splitlines()[-1].startswith("error: no case has a problem")


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGTERM, 143, "terminated"),
        pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.nightly),
    ],
)
def test_a_signal_ends_it_at_once_and_what_was_done_is_kept(folder, number, code, word):
    (folder / "long.toml").write_text(
        'models = [{generate = "layered", operators = 200, name = "long"}]\n'
        'planners = ["greedy", "cp-sat"]\n[limits]\ntime_limit_s = 300\nworkers = 1\n'
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-m", "fxpartition", "sweep", "long.toml", "-o", "r.sqlite", "--jobs=1"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        for line in process.stderr:
            if line.startswith("[1/2]"):
                break
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    said = ["what was done is in r.sqlite; the same command goes on", word]
    assert err.splitlines() == said
    assert [row.planner for row in load_study("r.sqlite").rows] == ["greedy"]


def test_the_example_is_a_sweep():
    example = ROOT / "docs" / "examples" / "sweep.toml"
    assert len(read_sweep(example).models) == 3
