"""What commands print in a terminal of 80 columns."""

import pytest

from experiments.cli import main

SERVE = (
    "serve tests.support.serving_models:small --prompt 8 --generate 4 --context 16 --batch 3 "
    "--devices 100KB,80KB"
)
STREAM = SERVE.replace("100KB,80KB", "90KB@rtx-4090 --host 100KB --time-limit 1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A plan and a problem of a small model of several layers."""
    path = tmp_path_factory.mktemp("narrow")
    devices = ["--devices", "1300KB,800KB"]
    assert main(["plan", "tiny-gpt2", *devices, "--out", str(path / "plan.json")]) == 0
    assert main(["export", "tiny-gpt2", *devices, "--out", str(path / "problem.json")]) == 0
    return path


@pytest.mark.parametrize(
    ("words", "has"),
    [
        ("plan problem.json --steps", "transformer."),
        ("plan problem.json --devices 2x9KB --time-limit 1", "infeasible"),
        (
            "plan problem.json --devices 2x1200KB --chunks 2 --schedule 1f1b --time-limit 2",
            "stage 1: ",
        ),
        ("solve problem.json --objective devices,transfer,peak_memory,latency", "transformer."),
        ("solve published:layer.gnmt_inference", "operators 15 to 35, 3 to 41"),
        ("score plan.json problem.json", "transformer."),
        ("split tiny-gpt2 --plan plan.json", "transformer."),
        ("hand-over plan.json tiny-gpt2 --to programs --out programs", "transformer."),
        ("compare problem.json --planner greedy,auto", "auto"),
        ("compare problem.json --time-limit 1", "auto"),
        ("models", "gpt2"),
        ("devices", "rtx-4090"),
        ("planners", "auto"),
        (f"{SERVE} --objective request --rules --for vllm", "layers.0"),
        (f"{SERVE} --objective all --for vllm", "layers.0"),
        (f"{STREAM} --rules", "resident: "),
        (f"{STREAM} --objective token --for llama.cpp", "on the host: "),
    ],
)
def test_no_line_is_longer_than_80_columns(folder, monkeypatch, capsys, words, has):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    main(words.split())
    printed = capsys.readouterr()
    assert has in printed.out, printed.err
    assert [line for line in printed.out.splitlines() if len(line) > 80] == []
