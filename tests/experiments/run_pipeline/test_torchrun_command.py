import contextlib
import json
import os
import signal
import sys
import time

import pytest
import torch

from experiments.cli import main
from experiments.run_pipeline.command import main as run_pipeline
from experiments.zoo.building import build_model
from experiments.zoo.models import ZOO
from fx_bridge.capture.graph import capture
from fx_bridge.checkpoint.stages import load_inputs
from solver import PartitionPlan, load_plan, save_plan
from tests.support.torchrun import errors, is_running, run, start, workers

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are looked up in /proc"
)
_GONE_S = 30


def write(folder, model, plan):
    """Write a plan and the stage files of a model."""
    save_plan(plan, folder / "plan.json")
    words = ["split", model, "--plan", str(folder / "plan.json"), "--out", str(folder / "stages")]
    assert main(words) == 0
    return folder


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """A folder with a plan of the five-layer model for two devices, and its stage files."""
    captured = capture(build_model(ZOO["mlp"]).module, build_model(ZOO["mlp"]).args)
    names = [node.name for node in captured.operators]
    assignment = {name: "cpu:0" if index < 3 else "cpu:1" for index, name in enumerate(names)}
    plan = PartitionPlan(assignment, ("cpu:0", "cpu:1"))
    return write(tmp_path_factory.mktemp("mlp"), "mlp", plan)


WORDS = ("plan.json", "mlp", "--weights", "stages")


def test_two_processes_train_as_one(mlp):
    words = ("--train", "--steps", "3", "--microbatches", "4", "--check", "--json")
    done = run(*WORDS, *words, cwd=mlp)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [rank["stages"] for rank in report["ranks"]] == [["submod_0"], ["submod_1"]]
    weights_bytes = [4 * (64 * 256 + 256 + 256 * 256 + 256)]
    weights_bytes += [4 * (256 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)]
    assert [rank["weights_bytes"] for rank in report["ranks"]] == weights_bytes
    assert all(len(rank["step_ns"]) == 3 for rank in report["ranks"])
    last = report["ranks"][1]
    assert last["max_abs_error"] <= last["tolerance"] and not report["ranks"][0]["losses"]
    # The model itself, trained without anything of this project but its inputs.
    model = build_model(ZOO["mlp"]).module
    (example,), _ = load_inputs(mlp / "stages")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for found in last["losses"]:
        optimizer.zero_grad()
        losses = torch.stack([model(example.roll(i)).square().mean() for i in range(4)])
        losses.mean().backward()
        optimizer.step()
        assert found == pytest.approx(losses.mean().item(), rel=1e-5)


@pytest.mark.deep
def test_operators_run_again_in_two_processes(tmp_path):
    words = ["plan", "mlp", "--devices", "2x1GB", "--memory-model", "training", "--cut-after", "4"]
    again = ["--solver", "chain", "--recompute", "all", "--regions", "[05]"]
    assert main([*words, *again, "--out", str(tmp_path / "plan.json")]) == 0
    assert len(load_plan(tmp_path / "plan.json").recomputed) > 2
    words = ("--device", "cpu", "--train", "--steps", "2", "--check", "--json")
    done = run("plan.json", "mlp", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout)["ranks"][1]
    assert last["max_abs_error"] <= last["tolerance"] and len(last["losses"]) == 2


MODEL = """
import torch

class Counted(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x).argmax(1)

def counted():
    model = Counted(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    return model, (torch.ones(2, 4),)
"""


@pytest.mark.deep
def test_every_process_says_why_one_of_them_refuses_to_go_on(tmp_path):
    (tmp_path / "counted.py").write_text(MODEL)
    assignment = {"linear": "cpu:0", "tanh": "cpu:0", "linear_1": "cpu:1", "argmax": "cpu:1"}
    save_plan(PartitionPlan(assignment, ("cpu:0", "cpu:1")), tmp_path / "plan.json")
    done = run("plan.json", "counted:counted", "--device", "cpu", "--train", cwd=tmp_path)
    assert done.returncode == 1
    reason = "no output of the model has a gradient; run it without --train"
    assert sorted(errors(done.stderr)) == [
        f"error: rank 0 failed in step 1: rank 1: {reason}",
        f"error: rank 1 failed in step 1: {reason}",
    ]


@contextlib.contextmanager
def endless(folder, *words):
    """Start a run without end and find its processes, none of which may be left afterwards."""
    launcher, found = start(*WORDS, "--steps", "100000000", *words, cwd=folder), {}
    try:
        yield launcher, found
        end = time.monotonic() + _GONE_S
        while any(map(is_running, found.values())) and time.monotonic() < end:
            time.sleep(0.05)
        left = [rank for rank, process in found.items() if is_running(process)]
        assert not left, f"{left} still run"
    finally:
        for process in (launcher.pid, *found.values()):
            if is_running(process):
                os.kill(process, signal.SIGKILL)


def killed(folder, whom, *words):
    """The errors of a run of which a rank, or torchrun, is killed in the middle of its steps."""
    with endless(folder, *words) as (launcher, found):
        while "running" not in launcher.stderr.readline():
            assert launcher.poll() is None
        time.sleep(1)
        found.update(workers(launcher.pid))
        assert set(found) == {0, 1}
        os.kill(launcher.pid if whom == "torchrun" else found[whom], signal.SIGKILL)
        output, said = launcher.communicate(timeout=_GONE_S)
    assert launcher.returncode != 0 and not output
    return errors(said)


@pytest.mark.deep
def test_a_killed_process_ends_the_run_with_one_clear_line(mlp):
    [line] = killed(mlp, 1, "--train")
    assert line.startswith("error: rank 0 ") and "another process" in line and " in step " in line


@pytest.mark.nightly
def test_no_process_outlives_torchrun(mlp):
    lines = killed(mlp, "torchrun")
    assert lines and all("torchrun, which started it, is gone" in line for line in lines)


@pytest.mark.parametrize(
    "later_s",
    [pytest.param(0.0, marks=pytest.mark.deep), pytest.param(2.0, marks=pytest.mark.nightly)],
)
def test_no_process_outlives_torchrun_that_is_killed_while_they_start(mlp, later_s):
    """Before they import torch, and while they do, or wait for each other."""
    with endless(mlp, "--timeout", "600") as (launcher, found):
        while set(found) != {0, 1}:
            assert launcher.poll() is None
            time.sleep(0.02)
            found.update(workers(launcher.pid))
        time.sleep(later_s)
        os.kill(launcher.pid, signal.SIGKILL)
    _, said = launcher.communicate(timeout=_GONE_S)
    assert errors(said)


@pytest.mark.nightly
def test_a_process_that_does_not_answer_ends_the_run(mlp):
    launcher = start(*WORDS, "--steps", "100000000", "--timeout", "5", cwd=mlp)
    while "running" not in launcher.stderr.readline():
        assert launcher.poll() is None
    time.sleep(1)
    found = workers(launcher.pid)
    os.kill(found[1], signal.SIGSTOP)
    _, said = launcher.communicate(timeout=90)
    assert launcher.returncode != 0
    [line] = errors(said)
    assert line.startswith("error: rank 0 broke off in step ")
    assert not any(map(is_running, found.values()))


@pytest.mark.nightly
def test_two_hosts_with_their_own_files_run_one_pipeline(mlp, tmp_path):
    hosts = [tmp_path / "a", tmp_path / "b"]
    for rank, host in enumerate(hosts):
        (host / "stages").mkdir(parents=True)
        (host / "plan.json").write_bytes((mlp / "plan.json").read_bytes())
        for name in ("manifest.json", "inputs.safetensors", f"stage_{rank}.safetensors"):
            (host / "stages" / name).write_bytes((mlp / "stages" / name).read_bytes())

    def both(port, *words):
        started = [
            start(
                *WORDS,
                *words,
                cwd=host,
                processes=1,
                options=("--nnodes=2", f"--node_rank={rank}", f"--rdzv_endpoint=localhost:{port}"),
            )
            for rank, host in enumerate(hosts)
        ]
        outputs = [process.communicate(timeout=120) for process in started]
        return [process.returncode for process in started], outputs

    codes, outputs = both(29613, "--train", "--json")
    assert codes == [0, 0], outputs
    assert len(json.loads(outputs[0][0])["ranks"]) == 2 and not outputs[1][0]
    (hosts[1] / "stages" / "stage_1.safetensors").unlink()
    codes, outputs = both(29614)
    assert all(codes)
    assert [len(errors(said)) for _, said in outputs] == [0, 1]
    assert "there is no file stages/stage_1.safetensors" in outputs[1][1]


# -- without torchrun ----------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """An environment that torchrun did not make."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_that_torchrun_did_not_start_says_so(mlp, alone, capsys):
    assert run_pipeline([str(mlp / "plan.json"), "mlp"]) == 2
    output = capsys.readouterr()
    assert "was not started by torchrun (RANK is not set)" in output.err
    assert len(output.err.splitlines()) == 1 and not output.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan.json",), "Missing argument 'MODEL'"),
        (("plan.json", "mlp", "--steps", "0"), "--steps"),
        (("plan.json", "mlp", "--microbatches", "none"), "--microbatches"),
        (("plan.json", "mlp", "--schedule", "zigzag"), "--schedule"),
        (("plan.json", "mlp", "--optimizer", "lion"), "--optimizer"),
    ],
)
def test_wrong_options_are_named_in_one_line(alone, capsys, words, message):
    assert run_pipeline(words) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1
