"""Plans in others' words: accelerate dispatches by the map, torch's pipeline cuts by the points."""

import copy
import functools
import random

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.utils import _pytree as pytree

from fx_bridge import Costs, Placement, Search
from fx_bridge.capture.graph import capture
from fx_bridge.interop.read_plans import plan_from_device_map, plan_from_split_spec
from fx_bridge.interop.write_plans import device_map, split_spec
from fx_bridge.partition import partition_module
from solver import Device, Interconnect, PartitionError, PartitionPlan
from tests.support.batch_models import GPT, LLAMA, hf
from tests.support.dispatch_models import (
    KINDS,
    TOKENS,
    Net,
    Record,
    kind_of,
    stages_of_plan,
    stages_of_torch,
)
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.split_checks import in_halves, in_one

pytestmark = pytest.mark.filterwarnings("ignore")


@functools.cache
def captured_net(blocks):
    return capture(Net(blocks), TOKENS)


def devices(count, memory_bytes=None):
    return [Device(f"cuda:{index}", memory_bytes) for index in range(count)]


def by_module(captured, places):
    """A plan that puts modules on devices, and what is outside of them with what it reads."""
    assignment = {}
    for path, device in places.items():
        assignment.update(dict.fromkeys(captured.modules.operators[path], device))
    for node in captured.operators:
        read = next(
            (assignment[r.name] for r in node.all_input_nodes if r.name in assignment), None
        )
        assignment.setdefault(node.name, read or next(iter(places.values())))
    order = tuple(dict.fromkeys(assignment[node.name] for node in captured.operators))
    return PartitionPlan(assignment, order)


def llama(tied=False):
    torch.manual_seed(0)
    more = {"num_hidden_layers": 3, "tie_word_embeddings": tied}
    return hf("LlamaForCausalLM", "LlamaConfig", **LLAMA | more).eval()


LLAMA_INPUTS = {"input_ids": torch.randint(0, 64, (2, 8))}


def planned(model):
    captured = capture(model, (), LLAMA_INPUTS)
    each = devices(3, sum(weight.nbytes for weight in model.parameters()) * 4 // 5)
    placement, costs = Placement(keep_whole=["model.layers.*"]), Costs(interconnect=Interconnect())
    plan = partition_module(captured, devices=each, placement=placement, costs=costs).plan
    assert len(plan.device_order) > 1
    return captured, each, plan


def test_the_map_is_as_short_as_can_be():
    captured = captured_net(3)
    assert device_map(captured, in_one(captured, "cuda:1").meta["plan"]) == {"": 1}
    places = {"embed": "cuda:0", "blocks.0": "cuda:0", "blocks.1": "cuda:1", "blocks.2": "cuda:1"}
    plan = by_module(captured, places | {"head": "cuda:1"})
    blocks = {"blocks.0": 0, "blocks.1": 1, "blocks.2": 1}
    assert device_map(captured, plan) == {"positions": 0, "embed": 0, **blocks, "head": 1}
    together = by_module(captured, {"embed": "cuda:0", "blocks": "cuda:0", "head": "cuda:1"})
    assert device_map(captured, together) == {"positions": 0, "embed": 0, "blocks": 0, "head": 1}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("cpu", "cuda:0", "accelerate computes nothing on cpu beside other devices"),
        ("fast", "cuda:0", "device 'fast' has no name that torch knows; name it such as 'cuda:0'"),
        ("cuda", "cuda:0", "the devices cuda, cuda:0 are not 2 devices to accelerate"),
        ("cpu:0", "cpu:1", "the devices cpu:0, cpu:1 are not 2 devices to accelerate"),
    ],
)
def test_devices_that_it_cannot_use_are_refused(first, second, message):
    captured = captured_net(1)
    plan = by_module(captured, {"embed": first, "blocks": second, "head": second})
    with pytest.raises(PartitionError, match=message):
        device_map(captured, plan)


def test_divided_modules_are_refused_with_what_to_keep_whole():
    shift = nn.Parameter(torch.ones(4))
    norm = module_with(lambda self, x: (x + self.shift).relu(), shift=shift)
    model = module_with(
        lambda self, x: self.pair["other"](self.pair["norm"](x)),
        pair=nn.ModuleDict({"norm": norm, "other": nn.Linear(4, 4)}),
    )
    captured = capture(model, (torch.ones(2, 4),))
    plan = in_halves(captured, 1, ("cuda:0", "cuda:1")).meta["plan"]
    with pytest.raises(PartitionError, match=r"divides module 'pair.norm' .*Placement\(keep_whole"):
        device_map(captured, plan)


def test_modules_without_tensors_may_be_called_anywhere():
    def forward(self, x):
        return self.act(self.b(self.act(self.a(x))))

    act = nn.Sequential(nn.Tanh())
    model = module_with(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4), act=act)
    captured = capture(model, (torch.ones(2, 4),))
    plan = in_halves(captured, devices=("cuda:0", "cuda:1")).meta["plan"]
    mapping = device_map(captured, plan)
    assert mapping == {"a": 0, "b": 1}
    assert plan_from_device_map(captured, devices(2), mapping) == plan
    assert split_spec(captured, plan) == {"b": SplitPoint.BEGINNING}


def test_residuals_over_two_devices_are_refused():
    captured = captured_net(2)
    # Two embeddings are added: the module around them is the whole model.
    places = {"embed": "cuda:1", "blocks": "cuda:0", "head": "cuda:0"}
    with pytest.raises(PartitionError, match=r"'embedding' on cuda:1 and 'positions' on cuda:0"):
        device_map(captured, by_module(captured, places))


def test_tied_weights_go_to_one_device_or_are_refused():
    captured, each, plan = planned(llama(tied=True))
    with refused("is read on cuda:0 and cuda:2, but accelerate keeps one copy of it"):
        device_map(captured, plan)
    mapping = device_map(captured, plan, tied="first")
    assert mapping["lm_head"] == mapping["model.embed_tokens"] == 0
    run = plan_from_device_map(captured, each, mapping)
    assert max(run.chunks.values()) == 1, "the data comes back to the first device"
    with pytest.raises(PartitionError, match="tied is 'last'; write 'refuse' or 'first'"):
        device_map(captured, plan, tied="last")


def test_accelerate_runs_the_plan(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model = llama()
    captured, each, plan = planned(model)
    mapping = device_map(captured, plan)
    accelerate.utils.check_device_map(model, mapping)
    layers = [f"model.layers.{index}" for index in range(3)]
    ends = ["model.embed_tokens", "model.rotary_emb"], ["model.norm", "lm_head"]
    assert list(mapping) == [*ends[0], *layers, *ends[1]]
    assert list(mapping.values()) == sorted(mapping.values())
    assert set(mapping.values()) == set(range(len(plan.device_order)))
    model.save_pretrained(tmp_path)

    with torch.no_grad():
        found = type(model).from_pretrained(tmp_path, device_map=dict.fromkeys(mapping, "cpu"))
        assert torch.equal(found(**LLAMA_INPUTS).logits, model(**LLAMA_INPUTS).logits)

    # The last device's modules on meta, which torch refuses to mix with the cpu.
    last = max(mapping.values())
    onto = {path: "meta" if device == last else "cpu" for path, device in mapping.items()}
    split = accelerate.dispatch_model(copy.deepcopy(model), onto, main_device="cpu")
    split._hf_hook.io_same_device = False
    with torch.no_grad(), Record() as record:
        split(**LLAMA_INPUTS)
    assert [kind for kind, _ in record.calls].count("linear") == 3 * 7 + 1
    run = plan_from_device_map(captured, each, mapping).assignment
    kinds = ("linear", "embedding")
    nodes = [node for node in captured.operators if kind_of(node) in kinds]
    places = ["meta" if run[node.name] == f"cuda:{last}" else "cpu" for node in nodes]
    expected = [(kind_of(node), place) for node, place in zip(nodes, places, strict=True)]
    assert [call for call in record.calls if call[0] in kinds] == expected
    assert {"linear", "embedding"} <= set(KINDS)


def test_random_plans_of_whole_modules_come_back_as_they_were():
    captured = captured_net(4)
    for seed in range(30):
        draws = random.Random(seed)
        paths = ["embed", *(f"blocks.{index}" for index in range(4)), "head"]
        at = sorted(draws.randint(0, 2) for _ in paths)
        places = {path: f"cuda:{number - at[0]}" for path, number in zip(paths, at, strict=True)}
        plan = by_module(captured, places)
        mapping = device_map(captured, plan)
        back = plan_from_device_map(captured, devices(3), mapping)
        for path, device in places.items():
            assert {back.assignment[name] for name in captured.modules.operators[path]} == {device}
        assert device_map(captured, back) == mapping


def gpt2():
    settings = GPT | {"n_layer": 3, "tie_word_embeddings": False}
    model = hf("GPT2LMHeadModel", "GPT2Config", **settings).eval()
    return model, (), LLAMA_INPUTS, ["transformer.h.*"]


@functools.cache
def captured_of(make):
    """A model, its inputs, what stays whole, and its graph, for both solvers."""
    model, args, kwargs, whole = make()
    return model, args, kwargs, whole, capture(model, args, kwargs)


@pytest.mark.parametrize("solver", ["auto", "chain"])
@pytest.mark.parametrize(
    "make", [lambda: (Net(4), TOKENS, {}, ["blocks.*", "embed", "head"]), gpt2]
)
def test_torch_cuts_the_model_into_the_stages_of_the_plan(make, solver):
    model, args, kwargs, whole, captured = captured_of(make)
    plan = partition_module(
        captured,
        devices=devices(3),
        placement=Placement(keep_whole=whole),
        costs=Costs(interconnect=Interconnect()),
        search=Search(solver=solver),
    ).plan
    assert len(plan.stages) > 1
    spec = split_spec(captured, plan)
    assert set(spec.values()) <= set(SplitPoint)
    back = plan_from_split_spec(captured, devices(3), spec)
    if solver == "chain":
        assert back == plan, "in execution order all of it is kept"
    for path in ("blocks.1", "transformer.h.1"):
        if any(name.startswith(path) for name, _ in model.named_modules()):
            names = captured.modules.operators[path]
            assert {back.assignment[n] for n in names} == {plan.assignment[n] for n in names}
    pipe = pipeline(copy.deepcopy(model), args, kwargs, split_spec=spec)
    assert stages_of_torch(pipe) == stages_of_plan(captured, back)
    with torch.no_grad():
        found = pytree.tree_leaves(pipe(*args, **kwargs))
        expected = pytree.tree_leaves(model(*args, **kwargs))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_torch_cannot_cut_is_refused():
    captured = captured_net(2)
    blocks = {"embed": "cuda:0", "blocks.0": "cuda:1", "blocks.1": "cuda:0", "head": "cuda:1"}
    plan = by_module(captured, blocks)
    with pytest.raises(PartitionError, match=r"a later stage, but a split_spec cuts a model in"):
        split_spec(captured, plan)

    layer = nn.Linear(4, 4)
    captured = capture(nn.Sequential(layer, layer), (torch.ones(2, 4),))
    plan = in_halves(captured, devices=("cuda:0", "cuda:1")).meta["plan"]
    with pytest.raises(PartitionError, match=r"divides module '0' between .*keep_whole"):
        split_spec(captured, plan)
    with pytest.raises(PartitionError, match="no device for operator 'linear_1'"):
        split_spec(captured, PartitionPlan({"linear": "cuda:0"}, ("cuda:0",)))
