"""Graphs costed with weights of other bytes than their tensors have."""

import pytest
import torch
from torch import nn

from fx_bridge import (
    Costs,
    DeviceSpec,
    capture,
    memory_profile,
    partition_module,
    stage_graph,
    to_digraph,
)
from solver import Device, PartitionError
from tests.support.modules import module_with
from tests.support.tensor_wrappers import int8_model


def tied():
    """An embedding that is the head, and a matrix between them."""
    model = module_with(
        lambda self, ids: self.head(self.inner(self.words(ids))),
        words=nn.Embedding(64, 32),
        inner=nn.Linear(32, 32, bias=False),
        head=nn.Linear(32, 64, bias=False),
    )
    model.head.weight = model.words.weight
    return model, (torch.zeros(1, 3, dtype=torch.long),)


def test_weights_take_the_bytes_and_the_time_of_what_is_stored():
    captured = capture(*tied())
    spec = DeviceSpec("slow", 10**15, 10**6)
    stored = {"inner.weight": 100, "head.weight": 640}  # of tied names one is enough
    graphs = [
        to_digraph(captured.with_weight_bytes(given), costs=Costs(specs={"slow": spec}))
        for given in ({}, stored)
    ]
    sizes = [{key: w["size_bytes"] for key, w in g.graph["weights"].items()} for g in graphs]
    assert sizes[0] == {"words.weight": 64 * 32 * 4, "inner.weight": 32 * 32 * 4}
    assert sizes[1] == {"words.weight": 640, "inner.weight": 100}
    before, after = (
        {name: of["latency_ns"]["slow"] for name, of in g.nodes.items() if of["kind"] == "operator"}
        for g in graphs
    )
    # A microsecond for a byte; of an embedding the rows are read that are asked for.
    saved = {"embedding": 0, "linear": 32 * 32 * 4 - 100, "linear_1": 64 * 32 * 4 - 640}
    assert {name: ns - 1000 * saved[name] for name, ns in before.items()} == after


def test_stages_and_profiles_hold_what_is_stored():
    stored = {"inner.weight": 100, "words.weight": 640}
    result = partition_module(
        capture(*tied()).with_weight_bytes(stored), devices=[Device("a", "2kB")]
    )
    (stage,) = stage_graph(result.split(), result.captured).stages
    held_bytes = memory_profile(result.captured).bytes_at_peak["weight"]
    assert stage.weights_bytes == held_bytes == 740


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([1], r"weight_bytes is \[1\]; write a mapping"),
        ({"inner.weight": -1}, r"weight_bytes\['inner.weight'\] is -1; write a number that is"),
        ({"inner.weight": 1.5}, r"weight_bytes\['inner.weight'\] is 1.5; write a whole number"),
        ({3: 1}, "weight_bytes has 3, which is no weight"),
        ({"inner.weigth": 1}, "'inner.weigth', which is no weight; did you mean in"),
    ],
)
def test_numbers_that_are_no_bytes_are_refused(given, why):
    with pytest.raises(PartitionError, match=why):
        capture(*tied()).with_weight_bytes(given)


def test_what_is_quantised_has_bytes_of_its_own():
    captured = capture(int8_model(), (torch.ones(2, 16),))
    with pytest.raises(PartitionError, match=r"'0.weight', which is quantised, and"):
        captured.with_weight_bytes({"0.weight": 1})
    assert captured.with_weight_bytes({}) is captured
