"""Plans that someone else made: which operators they put where, and what is wrong with them."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.pipelining import SplitPoint, pipeline

from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from fx_bridge.interop.read_plans import (
    device_map_run,
    plan_from_device_map,
    plan_from_split_spec,
    plan_in_chunks,
)
from fx_bridge.interop.write_plans import stage_devices
from solver import Device, PartitionError, Stage, evaluate, problem_from_digraph
from tests.support.dispatch_models import TOKENS, Net, stages_of_plan, stages_of_torch
from tests.support.refusals import refused

CPU_AND_GPUS = [Device("cpu"), Device("cuda:0"), Device("cuda:1")]
GPUS = CPU_AND_GPUS[1:]
ROW = (torch.randn(2, 4),)


@pytest.fixture(scope="module")
def captured():
    return capture(Net(3), TOKENS)


@pytest.mark.parametrize(
    "mapping",
    [
        {"embed": 0, "positions": 0, "blocks.0": 0, "blocks": 1, "head": 1},
        {"": 1, "embed": 0, "positions": 0, "blocks.0": 0},
        {"": "cuda:1", "embed": "cuda", "positions": torch.device("cuda:0"), "blocks.0": "cuda:0"},
    ],
)
def test_the_longest_path_that_encloses_a_module_counts(captured, mapping):
    plan = plan_from_device_map(captured, GPUS, mapping)
    for path, device in {"embed": 0, "blocks.0": 0, "blocks.1": 1, "head": 1}.items():
        names = captured.modules.operators[path]
        assert {plan.assignment[name] for name in names} == {f"cuda:{device}"}
    assert plan.device_order == ("cuda:0", "cuda:1")
    assert plan.chunks == {}
    problem = problem_from_digraph(to_digraph(captured), GPUS)
    assert evaluate(problem, plan).feasible


def test_data_that_comes_back_makes_chunks(captured):
    mapping = {"positions": 0, "embed": 0, "blocks.0": 1, "blocks.1": 0, "blocks.2": 1, "head": 0}
    plan = plan_from_device_map(captured, GPUS, mapping)
    chunks = [
        {plan.chunks.get(name, 0) for name in captured.modules.operators[path]}
        for path in ("embed", "blocks.0", "blocks.1", "blocks.2", "head")
    ]
    assert chunks == [{0}, {0}, {1}, {1}, {2}]
    problem = problem_from_digraph(to_digraph(captured), GPUS, chunks_per_device=3)
    assert evaluate(problem, plan).feasible
    assert not evaluate(problem.replace(chunks_per_device=2), plan).feasible


def test_random_assignments_flow_forward_in_their_rounds(captured):
    for seed in range(30):
        draws = random.Random(seed)
        assignment = {n.name: f"cuda:{draws.randrange(3)}" for n in captured.operators}
        plan = plan_in_chunks(captured, assignment)
        assert plan.assignment == assignment
        for node in captured.operators:
            for read in node.all_input_nodes:
                if read.name in assignment:
                    assert plan.stage_index[read.name] <= plan.stage_index[node.name]


def test_operators_that_read_on_two_devices_are_told(captured):
    mapping = {"": 0, "blocks.1.down": 1}
    run = device_map_run(captured, GPUS, mapping)
    assert {mixed.module for mixed in run.mixed} == {"blocks.1"}
    assert run.assignment[run.mixed[0].operator] == "cuda:1", "where the first value is"


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ([("", 0)], "write a mapping of module to device"),
        ({3: 0}, "the device map names 3; write the path of a module"),
        ({"": 0, "block.1": 1}, "the model has no module 'block.1'; did you mean 'blocks.1'"),
        ({"": 2}, "the device of '' is 2; the devices are cpu, cuda:0, cuda:1"),
        ({"": 0.5}, "the device of '' is 0.5; write a number such as 0, or a name"),
        ({"": 0, "head": "disk"}, "the device map leaves 'head' on disk: nothing runs there"),
        ({"": 0, "head": "cpu"}, "the device map offloads 'head' to cpu: accelerate computes"),
        ({"embed": 0, "blocks": 1}, "the device map has no device for 'positions'; add its module"),
    ],
)
def test_wrong_device_maps_are_refused(captured, mapping, message):
    with refused(message):
        plan_from_device_map(captured, CPU_AND_GPUS, mapping)


class WithBuffers(nn.Module):
    """Two of its buffers are in no state dict, one of them of a module without weights."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4), persistent=False)
        self.mask = nn.Module()
        self.mask.register_buffer("ones", torch.ones(4), persistent=False)
        self.register_buffer("kept", torch.ones(4))

    def forward(self, x):
        return self.down(self.up(x) * self.scale) * self.mask.ones + self.kept


@pytest.mark.parametrize(
    "mapping",
    [
        {"up": 0, "down": 1, "kept": 1},
        {"up.weight": 0, "up.bias": 0, "down": torch.device("cuda:1"), "kept": "cuda:1"},
        {"": np.int64(0), "down": 1, "kept": 1, "scale": 0, "mask": 1},
    ],
)
def test_buffers_need_a_device_if_they_are_in_the_state_dict(mapping):
    captured = capture(WithBuffers(), ROW)
    with refused("the device map has no device for 'kept'; add its mod"):
        plan_from_device_map(captured, GPUS, {"up": 0, "down": 1})
    modeling = pytest.importorskip("accelerate.utils.modeling")
    modeling.check_device_map(WithBuffers(), {path: str(at) for path, at in mapping.items()})
    plan = plan_from_device_map(captured, GPUS, mapping)
    assert [plan.assignment[name] for name in ("linear", "mul")] == ["cuda:0"] * 2
    assert [plan.assignment[name] for name in ("linear_1", "mul_1", "add")] == ["cuda:1"] * 3


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(4, 4)
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
        self.end = nn.Linear(4, 4)

    def forward(self, x):
        y = self.body(self.start(x) * 2)
        # The last of the inner layers is called once more.
        return self.end(self.body[2](y) + 1)


def test_cuts_are_where_torch_makes_them():
    model = Nested()
    captured = capture(model, ROW)
    names = [name for name, _ in model.named_modules() if name]
    several = 0
    for seed in range(8):
        draws = random.Random(seed)
        chosen = draws.sample(names, draws.choice([1, 2, 3]))
        spec = {name: draws.choice(list(SplitPoint)) for name in chosen}
        devices = [Device(f"cuda:{index}") for index in range(10)]
        plan = plan_from_split_spec(captured, devices, spec)
        pipe = pipeline(copy.deepcopy(model), ROW, split_spec=spec)
        ours = stages_of_plan(captured, plan)
        # A stage without operators of ours is none.
        assert ours == [stage for stage in stages_of_torch(pipe) if stage], spec
        assert plan.chunks == {}
        several += len(ours) > 2
    assert several > 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("body.1", "write a mapping of module to split point, such as {'layers.4': 'beginning'}"),
        ({"body.4": "end"}, "the model has no module 'body.4'; did you mean 'body.2'"),
        ({"body.1": "middle"}, "the split point of 'body.1' is 'middle'; write 'beginning' or"),
    ],
)
def test_wrong_split_specifications_are_refused(spec, message):
    with refused(message):
        plan_from_split_spec(capture(Nested(), ROW), GPUS, spec)


SPEC = {"body.0": "beginning", "body.1": "beginning", "end": "beginning"}


@pytest.mark.parametrize(
    ("devices", "stages"),
    [
        (["cuda:1", "cuda:0"], ["cuda:1", "cuda:0", "cuda:1 (chunk 1)", "cuda:0 (chunk 1)"]),
        ([["cuda:1", "cuda:0"], ["cuda:0"], ["cuda:0"]], None),
        ([["cuda:1"], ["cuda:0", "cuda:1"], ["cuda:0"]], None),
    ],
)
def test_devices_stand_beside_a_specification(devices, stages):
    captured = capture(Nested(), ROW)
    plan = plan_from_split_spec(captured, GPUS, {"split_spec": SPEC, "devices": devices})
    if stages is None:
        stages = [str(Stage(name, at)) for at, row in enumerate(devices) for name in row]
        assert stage_devices(plan) == devices
    assert [str(stage) for stage in plan.stages] == stages


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("cuda:1", "are no list of names, or one for each chunk; write such as"),
        ([["cuda:1"], []], "are no list of names, or one for each chunk; write such as"),
        (["cuda:9"], "names device 'cuda:9'; the devices are cuda:0, cuda:1"),
        (["cuda:1", "cuda:1"], "names device 'cuda:1' twice; name each once"),
        ([["cuda:1", "cuda:0"], ["cuda:0", "cuda:1"]], "in another order in each chunk"),
        ([["cuda:1"], ["cuda:0"]], "has 2 devices in lists for chunks and 4 stages; write the dev"),
    ],
)
def test_wrong_devices_beside_a_specification_are_refused(devices, message):
    with refused(message):
        plan_from_split_spec(capture(Nested(), ROW), GPUS, {"split_spec": SPEC, "devices": devices})


def test_a_container_is_never_called(captured):
    with pytest.raises(PartitionError, match="'blocks' is not called with operators of its own"):
        plan_from_split_spec(captured, GPUS, {"blocks": "end"})
