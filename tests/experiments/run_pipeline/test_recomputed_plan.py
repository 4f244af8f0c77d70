"""A plan in which operators run again, run as a pipeline: gradients are those of the model."""

import json
import subprocess
import sys

import pytest

from experiments.cli import main
from experiments.console.exit_codes import EXIT_NO_PLAN
from experiments.zoo.building import build_model, capture_model
from experiments.zoo.models import resolve_built
from solver import load_plan
from tests.support.paths import ROOT
from tests.support.torchrun import environment

PLAN = [
    *("plan", "resnet-50", "--memory-model", "training", "--schedule", "1f1b"),
    *("--microbatches", "8", "--devices", "3x225MB"),
]


@pytest.mark.nightly
def test_resnet_50_fits_for_what_runs_again_and_has_the_gradients_of_the_model(tmp_path, capsys):
    assert main([*PLAN, "--recompute", "none"]) == EXIT_NO_PLAN
    assert "no plan exists" in capsys.readouterr().err
    path = tmp_path / "plan.json"
    found = ["--recompute", "auto", "--time-limit", "20", "--out", str(path)]
    assert main([*PLAN, *found]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.plan_worker", path, "resnet-50", "8", tmp_path],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    plan = load_plan(path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    for device, rank in zip(plan.device_order, ranks, strict=True):
        own = [name for name in plan.recomputed if plan.assignment[name] == device]
        assert rank["again"] == sorted(8 * own)
        assert not rank["others"]
    model = capture_model(build_model(resolve_built("resnet-50"))).module
    held = [name for rank in ranks for name in rank["parameters"]]
    assert sorted(held) == sorted(name for name, _ in model.named_parameters())
