"""Stages without attention, of the kinds of hybrid models, against every division of the layers."""

import itertools

import pytest
import torch
import transformers
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.interop.engines import engine_words, plan_from_words
from fx_bridge.interop.layer_kinds import check_attention, kinds_of_layers
from fx_bridge.interop.stage_layers import LayerNames, StageLayers
from solver import Device, PartitionError
from tests.support.decoders import small

LINEAR, FULL = "linear_attention", "full_attention"


def refusal(kinds, counts):
    names = LayerNames(tuple(f"layers.{at}" for at in range(len(kinds))))
    stages = [StageLayers(f"cuda:{at}", count) for at, count in enumerate(counts)]
    try:
        return check_attention("vLLM", kinds, names, stages)
    except PartitionError as error:
        return str(error)


@pytest.mark.parametrize(
    ("kinds", "letters"),
    [
        ([LINEAR, LINEAR, FULL, LINEAR, FULL, LINEAR], "..a.a."),
        (["mamba", "mlp", "moe", "attention", "mamba", "hybrid"], "...a.a"),
        ([LINEAR] * 6, "aaaaaa"),  # no model with both
        (["sliding_attention", FULL] * 3, "aaaaaa"),
        ([], "aaaaaa"),
    ],
)
def test_each_stage_of_a_hybrid_has_attention(kinds, letters):
    for cuts in itertools.chain(*(itertools.combinations(range(1, 6), n) for n in range(5))):
        parts = [letters[a:b] for a, b in itertools.pairwise((0, *cuts, 6))]
        message = refusal(kinds, [len(part) for part in parts])
        assert (message is None) == all("a" in part for part in parts), (parts, message)


def test_the_refusal_says_what_to_keep_together():
    assert refusal([LINEAR, LINEAR, LINEAR, FULL], [2, 2]) == (
        "cuda:0 has layers 0 to 1, none of them with attention, and vLLM needs one on each stage "
        "of a hybrid model; plan with Placement(keep_whole=['layers.0+layers.3'])"
    )
    assert refusal([FULL, LINEAR, LINEAR], [2, 1]).endswith("['layers.0+layers.2'])")


def test_kinds_are_those_of_the_configuration():
    model, args = small()
    model.config = transformers.Qwen3NextConfig(num_hidden_layers=4)
    captured = capture(model, args)
    kinds = model.config.layer_types
    assert {*kinds} == {LINEAR, FULL}
    assert kinds_of_layers(captured, len(kinds)) == tuple(kinds)
    assert kinds_of_layers(captured, 99) == ()
    devices = [Device(f"cuda:{at}") for at in range(len(kinds))]
    plan = plan_from_words(captured, devices, ",".join("1" * len(kinds)), "vllm")
    with pytest.raises(PartitionError, match="none of them with attention, and vLLM needs one"):
        engine_words(captured, plan, "vllm")
    assert engine_words(captured, plan, "sglang")
    assert kinds_of_layers(capture(nn.Linear(2, 2), (torch.ones(1, 2),)), 1) == ()
