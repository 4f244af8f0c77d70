import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.checkpoint.ranks import load_model_weights, load_rank_weights
from fx_bridge.checkpoint.stages import save_stages
from fx_bridge.checkpoint.tensors import slots_of
from fx_bridge.split.by_plan import split_by_plan
from solver import PartitionPlan
from tests.support.placement_models import Tied

TOKENS = (torch.arange(6).reshape(2, 3),)


def saved(folder):
    """A split of a tied model into a, b and again a, saved; and what the model computes."""
    torch.manual_seed(0)
    model = Tied()
    captured = capture(model, TOKENS)
    devices = {"embedding": "a", "linear": "b", "relu": "b", "linear_1": "a"}
    plan = PartitionPlan(devices, ("a", "b"), {"linear_1": 1})
    save_stages(split_by_plan(captured, plan), captured, folder)
    expected = model(*TOKENS)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return captured, split_by_plan(captured, plan), expected


def test_a_rank_reads_its_files_alone_and_keeps_ties(tmp_path):
    _, split, expected = saved(tmp_path)
    names = [path.name for path in sorted(tmp_path.glob("stage_*"))]
    assert names == ["stage_0.safetensors", "stage_1.safetensors", "stage_2.safetensors"]
    hidden = tmp_path / "stage_1.safetensors"
    content = hidden.read_bytes()
    hidden.unlink()
    assert load_rank_weights(split, tmp_path, 0) == 2 * 4 * 10 * 6
    (first, *_), (last, *_) = (slots_of(part).values() for part in (split.submod_0, split.submod_2))
    assert first.tensor is last.tensor
    hidden.write_bytes(content)
    assert load_rank_weights(split, tmp_path, 1) == 4 * (6 * 6 + 6)
    assert torch.equal(split(*TOKENS), expected)


def test_a_whole_model_is_read_back_tied(tmp_path):
    captured, _, expected = saved(tmp_path)
    load_model_weights(captured.module, tmp_path)
    assert captured.module.head.weight is captured.module.embedding.weight
    assert torch.equal(captured.module(*TOKENS), expected)
