"""The library call, from a model to a split that computes the same."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from fx_bridge import (
    Costs,
    PartitionResult,
    Pipeline,
    Search,
    Training,
    check_equivalence,
    partition_module,
)
from fx_bridge.presentation.summary import summary
from solver import (
    Device,
    Interconnect,
    KiB,
    Link,
    PartitionError,
    SolveLimits,
    SolveStatus,
    evaluate,
    load_plan,
)
from tests.support.modules import module_with
from tests.support.refusals import refused

LIMITS = SolveLimits(workers=1, time_limit_s=60)
WEIGHTS = Costs(memory_model="weights")
Answer = namedtuple("Answer", ["mixed", "parts"])


class Branches(nn.Module):
    """Two branches of unequal width, a keyword argument, and a nested output."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(32, 32)
        self.wide = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
        self.narrow = nn.Linear(32, 32)
        self.register_buffer("offset", torch.linspace(-1, 1, 32))

    def forward(self, x, *, scale=1.0, shift):
        x = self.stem(x) * scale + shift["by"]
        wide, narrow = self.wide(x), self.narrow(x)
        return Answer(wide + narrow + self.offset, {"wide": wide, "both": (wide, [narrow])})


def inputs():
    torch.manual_seed(0)
    return (torch.randn(4, 32),), {"scale": 0.5, "shift": {"by": torch.randn(32)}}


def devices(*sizes_kib):
    return [Device(f"gpu{i}", memory_bytes=size * KiB) for i, size in enumerate(sizes_kib)]


def partition(model=None, **changes):
    args, kwargs = inputs()
    settings = {"devices": devices(44, 30), "search": Search(LIMITS), **changes}
    return partition_module(model or Branches(), args, kwargs, **settings)


def test_the_split_returns_what_the_model_returns_and_the_plan_is_saved(tmp_path):
    (args, kwargs), model = inputs(), Branches()
    result = partition(model=model)
    result.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == result.plan
    assert result.solved.status is SolveStatus.OPTIMAL
    split = result.split()
    found, expected = split(*args, **kwargs), model(*args, **kwargs)
    assert type(found) is Answer
    assert torch.equal(found.mixed, expected.mixed)
    assert torch.equal(found.parts["both"][1][0], expected.parts["both"][1][0])
    report = check_equivalence(model, split, args, kwargs, gradients=True)
    assert report.equal, report.differences


@pytest.mark.parametrize(("schedule", "microbatches"), [("1f1b", 3), ("gpipe", 4)])
def test_the_plan_for_a_step_is_no_slower_than_that_for_the_bottleneck(schedule, microbatches):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    settings = {
        "devices": devices(2000, 2000),
        "search": Search(LIMITS),
        "training": Training(),
        "costs": Costs(interconnect=Interconnect(Link(10**12), charging="relayed")),
        "pipeline": Pipeline(schedule, microbatches),
    }
    args = (torch.randn(2, 8, 16),)
    step = partition_module(model, args, objective="step", **settings)
    bottleneck = partition_module(model, args, objective="bottleneck", **settings)
    assert step.solved.status is SolveStatus.OPTIMAL
    assert step.solved.objective == step.solved.evaluation.step_ns
    assert step.solved.evaluation.devices_used == 2
    assert step.solved.objective <= evaluate(step.problem, bottleneck.solved.plan).step_ns
    assert step.solved.objective <= step.baseline.evaluation.step_ns
    assert check_equivalence(model, step.split(), args)


def test_a_limit_on_devices_is_kept():
    pipeline = Pipeline(chunks_per_device=2, max_devices=1)
    large, search = devices(2000, 2000, 2000), Search(LIMITS, "greedy")
    result = partition(devices=large, search=search, pipeline=pipeline)
    assert (result.problem.chunks_per_device, result.problem.max_devices) == (2, 1)
    assert len(result.plan.device_order) == 1


def test_a_model_is_split_into_several_stages_per_device():
    (args, kwargs), model = inputs(), Branches()
    setting = {"model": model, "costs": Costs(interconnect=Interconnect())}
    plain = partition(**setting)
    result = partition(pipeline=Pipeline(chunks_per_device=2), **setting)
    assert result.solved.objective <= plain.solved.objective
    assert evaluate(result.problem, result.plan).feasible
    report = check_equivalence(model, result.split(), args, kwargs, gradients=True)
    assert report.equal, report.differences


def test_too_little_memory_is_a_status_and_split_says_so():
    result = partition(devices=devices(10, 10))
    assert isinstance(result, PartitionResult)
    assert result.solved.status is SolveStatus.INFEASIBLE
    assert "infeasible" in str(result)
    # What would help is found, and confirmed by a plan.
    assert "rules out every plan" in str(result) and "Any one of these changes" in str(result)
    with pytest.raises(PartitionError, match=r"there is no plan to use \(infeasible\)") as caught:
        result.split()
    assert "fxpartition.diagnose(problem)" in str(caught.value)
    assert "time limit" not in str(caught.value)
    assert "<svg" not in result._repr_html_()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": []}, "there are no devices; give at least one"),
        ({"devices": ["cuda:0"]}, "devices: 'cuda:0' is not a Device"),
        ({"devices": [Device("a", device_class="abacus")]}, "no speed is known for class 'abacus'"),
        ({"objective": "speed"}, "objective is 'speed'; write one of"),
        ({"devices": [Device("a"), Device("a")]}, "two entries are called 'a'"),
        ({"devices": "cuda:0"}, "devices 'cuda:0': 'cuda:0' is not a memory; write for example"),
        ({"training": True}, "training is True; write training=Training(...)"),
        ({"pipeline": "1f1b"}, "pipeline is '1f1b'; write pipeline=Pipeline(schedule='1f1b')"),
        ({"search": SolveLimits()}, "write search=Search(limits=SolveLimits())"),
        ({"training": Training(), "costs": WEIGHTS}, "memory_model of costs is 'weights', but tr"),
        ({"costs": Costs(specs={})}, "write one of none, or give costs=Costs(specs=...)"),
    ],
)
def test_bad_input_is_one_line(changes, message):
    with refused(message):
        partition(**changes)


def test_a_schedule_plans_a_pipeline() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).eval()
    settings: dict[str, Any] = {"devices": [Device("a"), Device("b")]}
    pipeline = Pipeline("gpipe", microbatches=4)
    inputs = (torch.ones(8, 64),)
    result = partition_module(model, inputs, pipeline=pipeline, **settings)
    assert result.problem.interconnect.charging == "relayed"
    assert result.problem.objective == ("step",)
    assert result.problem.schedule == "gpipe"
    assert result.solved.status is SolveStatus.OPTIMAL
    assert result.solved.objective == evaluate(result.problem, result.plan).step_ns
    plain = partition_module(model, inputs, pipeline=Pipeline(microbatches=4), **settings)
    assert plain.problem.interconnect.charging == "peer_to_peer"
    assert plain.problem.objective == ("bottleneck",)
    staged = Costs(interconnect=Interconnect(charging="host_staged"))
    with pytest.raises(PartitionError, match="not through a host"):
        partition_module(model, inputs, pipeline=Pipeline("1f1b"), costs=staged, **settings)


def unread():
    """A model with weights that its forward leaves out."""

    def forward(self, x):
        self.note = "seen"
        return self.second(self.first(x))

    layers = {name: nn.Linear(64, 64) for name in ("first", "second")}
    return module_with(forward, **layers, unread=nn.Linear(64, 128, bias=False), note=None)


def test_printing_says_how_it_was_captured_and_what_no_device_holds():
    devices = [Device(name, 20 * KiB) for name in ("<a>", "b")]
    result = partition_module(unread(), (torch.ones(2, 64),), devices=devices)
    *table, how, left_out = str(result).splitlines()
    assert "\n".join(table) == summary((result.baseline, result.solved))
    assert how == f"captured by export; {result.captured.note}" and "note" in how
    assert left_out.startswith("1 weight that no operator reads (32.77 kB)"), left_out
    # They are in no stage, and so on no device.
    held = sum(p.nbytes for p in result.place("cpu").parameters())
    assert held == 2 * (64 * 64 + 64) * 4
    assert sum(p.nbytes for p in unread().parameters()) == held + 64 * 128 * 4
    page = result._repr_html_()
    assert "0: &lt;a&gt;" in page and "<a>" not in page
    assert "captured by export" in page


def test_printing_says_which_attention_was_assumed_for_the_classes_that_devices_name():
    queries = torch.ones(1, 2, 64, 64, dtype=torch.bfloat16, device="meta")
    classes = ("a100-80gb", "t4")
    devices = [Device(name, "1GiB", device_class=name) for name in classes]
    attends = module_with(lambda self, x: nn.functional.scaled_dot_product_attention(x, x, x) + 1)
    lines = str(partition_module(attends, (queries,), devices=devices)).splitlines()
    told = {"a100-80gb": "flash", "t4": "math"}.items()
    assert lines[-2:] == [f"attention on {kind}: {name} (1 operator)" for kind, name in told]
    unnamed = str(partition_module(attends, (queries,), devices=[Device("a", "1GiB")]))
    assert "attention on" not in unnamed


def test_a_plan_is_rehearsed_on_one_device():
    model = unread()
    devices = [Device(name, 20 * KiB) for name in ("gpu0", "gpu1", "idle")]
    result = partition_module(model, (x := torch.randn(2, 64),), devices=devices)
    for where in ("cpu", torch.device("cpu")):
        placed = result.place(where)
        assert {*placed.devices.values()} == {torch.device("cpu")} and len(placed.devices) == 2
        assert torch.equal(placed(x), model(x))
    with pytest.raises(PartitionError, match="'cuda:99', which is to be device 'gpu"):
        result.place("cuda:99")
