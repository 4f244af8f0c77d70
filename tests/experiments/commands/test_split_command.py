import json

import pytest

from experiments.cli import main
from fx_bridge.checkpoint.manifest import load_manifest
from solver import load_plan

PAIR = """
import torch
from dataclasses import dataclass

@dataclass
class Pair:
    first: torch.Tensor

torch.export.register_dataclass(Pair)

class Doubled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, pair):
        return self.linear(pair.first).relu()

def model():
    return Doubled(), (Pair(torch.ones(2, 4)),)

class OwnRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.relu_()

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Activated(Doubled):
    def forward(self, pair):
        return OwnRelu.apply(self.linear(pair.first))

def activated():
    return Activated(), (Pair(torch.ones(2, 4)),)

def on_meta():
    with torch.device("meta"):
        return torch.nn.Linear(4, 4), (torch.ones(1, 4),)
"""


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some_models.py").write_text(PAIR)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write_plan(path, assignment, order=("a", "b")):
    plan = {
        "schema": "fxpartition.plan",
        "version": 2,
        "device_order": list(order),
        "assignment": assignment,
    }
    path.write_text(json.dumps(plan))


def test_split_writes_stages(in_folder, capsys):
    assert main(["plan", "mlp", "--devices", "2x400KiB", "--out", "plan.json"]) == 0
    capsys.readouterr()
    assert main(["split", "mlp", "--plan", "plan.json", "--out", "new/stages"]) == 0
    output = capsys.readouterr()
    assert "wrote new/stages: 3 files with" in output.out and not output.err
    manifest = load_manifest("new/stages")
    assert manifest.plan == load_plan("plan.json") and manifest.model_name == "mlp"


def test_inputs_that_cannot_be_saved_are_left_out(in_folder, capsys):
    write_plan(in_folder / "plan.json", {"linear": "a", "relu": "b"})
    assert main(["split", "some_models:model", "--plan", "plan.json", "--out", "out"]) == 0
    output = capsys.readouterr()
    assert "note: the inputs are not saved: inputs[0][0] is a Pair" in output.err
    assert "wrote out: 2 files" in output.out
    assert load_manifest("out").inputs is None


def test_what_cannot_be_written_is_said_before_the_work(in_folder, capsys, refuses):
    write_plan(in_folder / "plan.json", {"linear": "a"}, order=("a",))
    command = ["split", "some_models:on_meta", "--plan", "plan.json"]
    refuses([*command, "--out", "out"], "has no weights in memory")
    assert not (in_folder / "out").exists()
    assert main(command) == 0
    (in_folder / "mine").mkdir()
    (in_folder / "mine" / "notes.txt").write_text("")
    capsys.readouterr()
    assert main(["split", "mlp", "--plan", "plan.json", "--out", "mine"]) == 2
    output = capsys.readouterr()
    assert "holds other files, such as notes.txt" in output.err and not output.out


def test_commands_that_capture_say_what_the_graph_lacks(in_folder, capsys):
    for model, noted in (("some_models:activated", True), ("some_models:model", False)):
        for words in (
            ["plan", model, "--devices", "2x1MiB", "--out", "plan.json", "--json"],
            ["split", model, "--plan", "plan.json", "--json"],
            ["score", "plan.json", model, "--devices", "2x1MiB", "--json"],
            ["export", model, "--devices", "2x1MiB", "--out", "problem.json", "--json"],
        ):
            assert main(words) == 0
            output = capsys.readouterr()
            assert json.loads(output.out)
            found = [line for line in output.err.splitlines() if line.startswith("note: ")]
            assert len(found) == noted, words
            assert all("the graph has the forward pass alone of" in line for line in found)


def test_a_graph_that_computes_something_else_is_captured_another_way(in_folder, capsys, refuses):
    model = "tests.support.run_models:traced_apart"
    plan = ["plan", model, "--devices", "2x2kB", "--out", "plan.json"]
    split = ["split", model, "--plan", "plan.json"]
    assert main(plan) == 0 and "mul" in load_plan("plan.json").assignment
    assert main(split) == 4
    assert capsys.readouterr().err.endswith("; plan and split it with --check\n")
    assert main([*plan, "--check"]) == 0 and "div" in load_plan("plan.json").assignment
    for words in (
        split,
        ["score", "plan.json", model, "--devices", "2x2kB"],
        ["hand-over", "plan.json", model, "--to", "split-spec", "--out", "spec.json"],
    ):
        assert main([*words, "--check"]) == 0
        assert "note: export computes something else" in capsys.readouterr().err
        refuses(words, "'mul'")
    refuses(
        ["split", "some_models:on_meta", "--plan", "plan.json", "--check"],
        "error: --check runs Linear, which has no values",
    )
