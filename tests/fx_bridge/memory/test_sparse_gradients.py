"""Embeddings with sparse gradients, which some optimisers refuse."""

import pytest
import torch
from torch import nn

from fx_bridge import Costs, Training, capture, memory_profile, partition_module
from solver import Device, Interconnect, MiB, PartitionError

TOKENS = torch.tensor([1, 2])
DEVICES = [Device("a", MiB), Device("b", MiB)]


def model_with(embedding):
    return nn.Sequential(embedding, nn.Linear(8, 8))


def planned(model, training):
    costs = Costs(interconnect=Interconnect())
    return partition_module(model, (TOKENS,), devices=DEVICES, training=training, costs=costs)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_they_are_refused_by_name(optimizer):
    model = model_with(nn.Embedding(20, 8, sparse=True))
    with pytest.raises(PartitionError, match=f"'embedding' has a sparse .* {optimizer} refuses"):
        memory_profile(capture(model, (TOKENS,)), training=True, optimizer=optimizer)
    with pytest.raises(PartitionError, match="sparse=False"):
        planned(model, Training(optimizer=optimizer))


def test_what_can_be_trained_is_planned():
    model = model_with(nn.Embedding(20, 8, sparse=True))
    assert planned(model, Training(optimizer="sgd")).plan is not None
    assert planned(model, None).plan is not None
    assert planned(model_with(nn.Embedding(20, 8)), Training(optimizer="adamw")).plan is not None
    profile = memory_profile(capture(model, (TOKENS,)), training=True, optimizer="sgd")
    assert profile.peak_bytes > 0
