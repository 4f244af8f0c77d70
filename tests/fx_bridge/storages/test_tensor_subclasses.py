"""Tensor subclasses that hold others count what is within, wherever bytes are counted."""

import copy

import pytest
import torch
from torch import fx, nn

from fx_bridge import capture, check_equivalence, place, stage_graph, to_digraph
from fx_bridge.capture.digest import graph_digest
from fx_bridge.checkpoint.inputs import flat_tensors
from fx_bridge.checkpoint.ranks import load_model_weights
from fx_bridge.checkpoint.stages import save_stages
from fx_bridge.memory.profile import memory_profile
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import cloned, mapped_parts, parts_of, with_parts
from solver import Device, PartitionError, PartitionPlan, evaluate, problem_from_digraph
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.split_checks import in_halves, in_one
from tests.support.tensor_wrappers import (
    Coded,
    Int8,
    centred_model,
    coded_model,
    frozen,
    int8_model,
)

X = torch.randn(2, 16)


def held_bytes(model):
    """Count every storage of a model once."""
    tensors = [*model.parameters(), *model.buffers()]
    storages = [p.untyped_storage() for tensor in tensors for p in parts_of(tensor).values()]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def test_parts_are_named_by_their_paths_and_put_together_again():
    weight = centred_model()[0].weight
    assert list(parts_of(weight)) == [".inner.codes", ".inner.scale", ".centre"]
    doubled = mapped_parts(weight, lambda path, part: part + part if path == ".centre" else part)
    assert torch.equal(doubled.centre, torch.full((1,), 2.0))
    assert doubled.inner.codes is weight.inner.codes
    again = with_parts(weight, parts_of(doubled))
    assert type(again) is type(doubled) and again.centre is doubled.centre
    copied = cloned(weight)
    assert torch.equal(copied.inner.codes, weight.inner.codes)
    assert copied.inner.codes is not weight.inner.codes


@pytest.mark.parametrize(
    "given", [lambda model: model, fx.symbolic_trace], ids=["export", "call_module"]
)
@pytest.mark.parametrize("make", [int8_model, coded_model])
def test_the_graph_the_evaluator_and_the_profile_count_inner_tensors(make, given):
    model = make()
    captured = capture(given(model), (X,))
    graph = to_digraph(captured)
    weights = graph.graph["weights"]
    assert sum(weight["size_bytes"] for weight in weights.values()) == held_bytes(model)
    assert memory_profile(captured).bytes_at_peak["weight"] == held_bytes(model)
    problem = problem_from_digraph(graph, [Device("one", memory_bytes=10**6)])
    plan = PartitionPlan(dict.fromkeys((op.name for op in problem.operators), "one"), ("one",))
    assert evaluate(problem, plan).usage[0].weights_bytes == held_bytes(model)


def test_wrappers_within_wrappers_and_buffers_count_too():
    weights = to_digraph(capture(centred_model(), (torch.ones(2, 8),))).graph["weights"]
    assert weights["0.weight"]["size_bytes"] == 64 + 8 * 4 + 4
    table = nn.Buffer(Int8.of(torch.randn(8, 8)))
    model = module_with(lambda self, x: x @ self.table, table=table)
    weights = to_digraph(capture(model, (torch.ones(2, 8),))).graph["weights"]
    assert weights["table"]["size_bytes"] == 64 + 8 * 4


def test_what_weights_share_is_counted_once_on_each_device():
    captured = capture(coded_model(), (X,))
    stages = stage_graph(in_halves(captured), captured).stages
    assert [stage.weights_bytes for stage in stages] == [256 + 1024, 256 + 1024]
    weights = to_digraph(captured).graph["weights"]
    sizes = {key: weight["size_bytes"] for key, weight in weights.items()}
    assert sizes == {"0.weight": 256, "0.weight.table": 1024, "1.weight": 256}


def test_what_is_dequantised_on_the_way_is_workspace():
    profile = memory_profile(capture(int8_model(), (X,)))
    # The codes as float32, and their product with the scale.
    assert profile.bytes_at_peak["temporary"] == 2 * 32 * 16 * 4


def test_an_input_may_be_a_wrapper():
    weight = Int8.of(torch.randn(16, 16))
    captured = capture(fx.symbolic_trace(module_with(lambda self, x, w: x @ w)), (X, weight))
    table = captured.storage_table
    assert table.value_bytes["w"] == 16 * 16 + 16 * 4
    assert sum(s.size_bytes for s in table.storages["w"]) == 16 * 16 + 16 * 4
    assert memory_profile(captured).bytes_at_peak["input"] == X.nbytes + 16 * 16 + 16 * 4


def test_wrappers_keep_their_class_and_what_they_share_on_another_device():
    captured = capture(coded_model(), (X,))
    placed = place(in_one(captured), copy=True)
    first, second = placed.parameters()
    assert type(first) is type(second) is Coded and isinstance(first, nn.Parameter)
    assert memory_of(first.table) == memory_of(second.table)
    assert memory_of(first.table) != memory_of(captured.module.get_parameter("0.weight").table)
    assert torch.equal(placed(X), captured.module(X))
    on_meta = place(in_halves(captured, devices=("a", "b")), {"a": "meta", "b": "meta"})
    assert {parameter.table.device.type for parameter in on_meta.parameters()} == {"meta"}
    assert on_meta(X.to("meta")).shape == (2, 16)


@pytest.mark.parametrize("make", [int8_model, coded_model])
def test_stage_files_hold_what_is_within(make, tmp_path):
    model = make()
    captured = capture(model, (X,))
    save_stages(in_halves(captured, devices=("a", "b")), captured, tmp_path)
    other = copy.deepcopy(model)
    for tensor in other.parameters():
        for part in parts_of(tensor.detach()).values():
            part.zero_()
    empty = capture(other, (X,))
    assert graph_digest(empty) == graph_digest(captured)
    placed = place(in_halves(empty, devices=("a", "b")), {"a": "cpu", "b": "cpu"}, weights=tmp_path)
    assert torch.equal(placed(X), model(X))
    assert not torch.equal(other(X), model(X))
    load_model_weights(empty.module, tmp_path)
    assert torch.equal(empty.module(X), model(X))
    types = {name: type(tensor) for name, tensor in model.named_parameters()}
    assert {name: type(t) for name, t in empty.module.named_parameters()} == types


def test_an_input_that_wraps_others_is_not_saved():
    with pytest.raises(PartitionError, match=r"inputs is a Int8, a class that no file holds"):
        flat_tensors(Int8.of(torch.ones(2, 2)))


def test_parts_of_a_weight_are_taken_where_they_are_read():
    wanted = torch.ops.export.access_subclass_inner_tensor.default
    # They read the parts of their weights by themselves.
    weights = [frozen(Int8.of(torch.randn(16, 16))) for _ in range(2)]
    dequantising = (
        module_with(lambda self, x: x @ (self.weight.codes * self.weight.scale), weight=weight)
        for weight in weights
    )
    model = nn.Sequential(*dequantising)
    captured = capture(model, (X,))
    nodes = list(captured.graph.nodes)
    taken = [node for node in nodes if node.target is wanted]
    assert len(taken) == 4
    groups = [set(group.operators) for group in colocation_groups(captured)]
    for node in taken:
        [reader] = node.users
        assert node.meta["nn_module_stack"] == reader.meta["nn_module_stack"]
        between = nodes[nodes.index(node) : nodes.index(reader)]
        assert {each.target for each in between} == {wanted}
        assert any({node.name, reader.name} <= group for group in groups)
    assert check_equivalence(model, in_halves(captured, devices=("a", "b")), (X,)).equal


def test_what_torch_leaves_in_a_class_of_wrappers_is_no_change_of_the_model():
    class Fresh(Int8):
        pass

    model = int8_model()
    model[0].weight = frozen(Fresh.of(torch.randn(32, 16)))
    assert capture(model, (X,)).note == ""
    assert "__getattribute__" not in vars(Fresh)


def test_layers_whose_scales_are_in_no_buffer_are_refused_with_what_to_do():
    layer = type("Linear4bit", (nn.Linear,), {"__module__": "bitsandbytes.nn.modules"})
    model = nn.Sequential(nn.Linear(16, 16), layer(16, 16))
    with refused("submodule '1' is a layer of bitsandbytes, ", "torchao"):
        capture(model, (X,))
