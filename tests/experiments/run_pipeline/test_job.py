import json
from dataclasses import replace

import pytest
import torch

from experiments.cli import main
from experiments.run_pipeline.job import prepare
from experiments.run_pipeline.launch import JobOptions, Launch
from experiments.zoo.building import build_model
from experiments.zoo.models import ZOO
from fx_bridge.capture.graph import capture
from fx_bridge.checkpoint.tensors import slots_of
from fx_bridge.recomputation.stage import RecomputingStage
from solver import PartitionError, PartitionPlan, load_plan, save_plan


def plan_of(devices=("cpu:0", "cpu:1")):
    captured = capture(build_model(ZOO["mlp"]).module, build_model(ZOO["mlp"]).args)
    names = [node.name for node in captured.operators]
    return PartitionPlan(
        {name: devices[index * len(devices) // len(names)] for index, name in enumerate(names)},
        tuple(devices),
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlp")
    save_plan(plan_of(), folder / "plan.json")
    words = ["--plan", str(folder / "plan.json"), "--out", str(folder / "stages")]
    assert main(["split", "mlp", *words]) == 0
    return folder


def options(folder, **changes):
    names = {"plan_file": str(folder / "plan.json"), "model": "mlp"}
    return JobOptions(**{**names, "weights": str(folder / "stages"), **changes})


RANKS = [Launch(rank, 2, rank, 2) for rank in range(2)]


def refused(given, launch=RANKS[0]):
    with pytest.raises(PartitionError) as error:
        prepare(given, launch)
    text = str(error.value)
    assert "\n" not in text and len(text) < 600
    return text


def test_a_job_is_ready_without_weights_in_memory(saved):
    for launch in RANKS:
        job = prepare(options(saved, microbatches=3), launch)
        assert job.stages == (f"submod_{launch.rank}",) and not job.note
        assert job.device == torch.device("cpu") and job.microbatches == 3
        [example], _ = job.inputs[0]
        assert torch.equal(job.batch[0][0], torch.cat([example.roll(i) for i in range(3)]))
        model = build_model(ZOO["mlp"]).module
        own = {p.rpartition(".")[0] for p in slots_of(job.split.get_submodule(job.stages[0]))}
        held = sum(p.nbytes for n, p in model.named_parameters() if n.rpartition(".")[0] in own)
        assert job.weights_bytes == held


def test_streamed_operators_are_refused(saved, tmp_path):
    plan = load_plan(saved / "plan.json")
    name = next(iter(plan.assignment))
    save_plan(replace(plan, mode_of={name: "streamed"}), tmp_path / "plan.json")
    given = options(tmp_path, weights=None, device="cpu")
    assert f"operator {name!r} of the plan is streamed" in refused(given)


def test_what_runs_again_does_so_by_the_regions_of_the_plan(tmp_path):
    model = "tests.support.decoders:small"
    given = options(tmp_path, model=model, weights=None, device="cpu", train=True)
    words = ["plan", model, "--devices", "2x1GB", "--memory-model", "training"]
    again = ["--solver", "chain", "--recompute", "all", "--regions", "layers.[02]"]
    cut = ["--cut-after", "layers.1", "--out", str(tmp_path / "plan.json")]
    assert main([*words, *again, *cut]) == 0
    plan = load_plan(tmp_path / "plan.json")
    assert plan.region_starts == ("embedding", "linear", "linear_4", "layer_norm")
    for launch in RANKS:
        job = prepare(given, launch)
        stage = job.split.get_submodule(job.stages[0])
        assert isinstance(stage, RecomputingStage)
        decisions = stage.meta["recomputation"]
        own = {node.name for node in stage.graph.nodes}
        # A dropout of nothing, which is a view, runs again where its value does.
        views = {name for name in own if "dropout" in name}
        assert decisions.again - views == own & plan.recomputed
        assert set(decisions.regions.values()) == {launch.rank + 1}
    # By the layers of the model no operator could run again alone.
    save_plan(replace(plan, region_starts=()), tmp_path / "plan.json")
    text = refused(given)
    assert "cannot run again" in text and "of another region, needs it" in text


def test_a_wrong_world_is_named(saved):
    text = refused(options(saved), Launch(0, 3, 0, 3))
    assert "the job has 3 processes, but the plan has 2 devices (cpu:0, cpu:1)" in text
    assert "--nproc_per_node=2" in text


def test_a_device_that_is_not_there_is_named(saved, tmp_path):
    save_plan(plan_of(("cuda:98", "cuda:99")), tmp_path / "plan.json")
    given = options(saved, plan_file=str(tmp_path / "plan.json"), weights=None)
    assert "device 'cuda:99' is not there" in refused(given, RANKS[1])
    assert (
        "device 'cuda:1' is not there" in refused(options(saved, device="cuda"), Launch(1, 2, 1, 2))
        or torch.cuda.device_count() > 1
    )
    # On several hosts each counts its own devices.
    if not torch.cuda.is_available():
        assert "device 'cuda:0' is not there" in refused(given, Launch(1, 2, 0, 1))
    assert prepare(options(saved, device="cpu"), RANKS[1]).device.type == "cpu"


def test_a_missing_or_altered_file_is_named_by_the_rank_that_needs_it(saved, tmp_path):
    folder = tmp_path / "stages"
    folder.mkdir()
    for path in (saved / "stages").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "stage_1.safetensors").unlink()
    given = options(saved, weights=str(folder))
    prepare(given, RANKS[0])
    assert "there is no file" in refused(given, RANKS[1])
    content = (folder / "stage_0.safetensors").read_bytes()
    (folder / "stage_0.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "stage_0.safetensors was altered" in refused(given)
    (folder / "inputs.safetensors").unlink()
    (folder / "stage_0.safetensors").write_bytes(content)
    assert "inputs.safetensors" in refused(given)
    (folder / "manifest.json").unlink()
    assert "has no manifest.json" in refused(given)


def test_a_plan_for_other_files_or_another_model_is_named(saved, tmp_path):
    plan = plan_of()
    moved = PartitionPlan({**plan.assignment, "relu_1": "cpu:1"}, plan.device_order)
    save_plan(moved, tmp_path / "plan.json")
    text = refused(options(saved, plan_file=str(tmp_path / "plan.json")))
    assert "operator 'relu_1' is on cpu:0 there but on cpu:1 in the plan" in text
    text = refused(options(saved, model="tiny-branches"))
    assert "another graph: model 'tiny-branches' does not take the inputs of" in text
    assert "written for 'mlp'" in text
    text = refused(options(saved, model="tiny-branches", weights=None))
    assert "the plan has no device for operator" in text


def test_other_sizes_of_the_same_model_are_named(saved, tmp_path, monkeypatch):
    (tmp_path / "wider_models.py").write_text(
        "import torch\n"
        "from experiments.zoo.models import ZOO\n"
        "def wider():\n"
        "    model, args = ZOO['mlp'].factory()\n"
        "    model[8] = torch.nn.Linear(64, 11)\n"
        "    return model, args\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = refused(options(saved, model="wider_models:wider"))
    assert "another graph: node '_8_weight' is 'get_attr 8.weight -> float32[10, 64]' there" in text


def test_settings_that_do_not_run_are_named(saved, tmp_path):
    assert "needs as many; write 2 or more" in refused(options(saved, microbatches=1))
    assert "is a saved problem; name a model that can be built" in refused(
        options(saved, model=str(saved / "plan.json"))
    )
    (tmp_path / "plan.json").write_text(json.dumps({"schema": "something"}))
    text = refused(options(saved, plan_file=str(tmp_path / "plan.json")))
    assert "schema is 'something'" in text


NEEDY = """
import torch

class Needy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        width = int(torch.tensor([4.0]).sum())
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, x):
        return self.second(self.first(x))

def needy():
    return Needy(), (torch.ones(2, 4),)

def on_meta():
    with torch.device("meta"):
        return torch.nn.Linear(4, 4), (torch.ones(2, 4),)
"""


def test_a_factory_that_needs_numbers_is_built_with_weights(tmp_path, monkeypatch):
    (tmp_path / "needy_models.py").write_text(NEEDY)
    monkeypatch.syspath_prepend(tmp_path)
    plan = PartitionPlan({"linear": "cpu:0", "linear_1": "cpu:1"}, ("cpu:0", "cpu:1"))
    save_plan(plan, tmp_path / "plan.json")
    words = ["--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "stages")]
    assert main(["split", "needy_models:needy", *words]) == 0
    job = prepare(options(tmp_path, model="needy_models:needy"), RANKS[1])
    assert "built with all of its weights" in job.note and "cannot be built" in job.note


def test_a_model_without_weights_cannot_run_without_files(tmp_path, monkeypatch):
    (tmp_path / "weightless_models.py").write_text(NEEDY)
    monkeypatch.syspath_prepend(tmp_path)
    save_plan(PartitionPlan({"linear": "cpu"}, ("cpu",)), tmp_path / "plan.json")
    given = options(tmp_path, model="weightless_models:on_meta", weights=None)
    assert "no weights in memory" in refused(given, Launch(0, 1, 0, 1))


def test_a_folder_says_how_its_model_was_captured(tmp_path):
    model, plan = "tests.support.run_models:traced_apart", str(tmp_path / "plan.json")
    words = ["--check", "--out", plan]
    assert main(["plan", model, "--devices", "2x2kB", *words]) == 0
    words = ["--check", "--plan", plan, "--out", str(tmp_path / "stages")]
    assert main(["split", model, *words]) == 0
    job = prepare(options(tmp_path, model=model, device="cpu"), RANKS[0])
    assert job.captured.check and "split with --check" in job.note
    assert "div" in [node.name for node in job.captured.operators]
    text = refused(options(tmp_path, model=model, device="cpu", weights=None))
    assert "capture it as for the plan" in text
