"""Runs in which each operator is asked once are those in which each is asked each time."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from fx_bridge.capture.graph import capture
from fx_bridge.costs.operators import node_flops
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.repeated_calls import RepeatedCalls, RepeatingFakeTensorMode
from fx_bridge.storages.replay import Replay
from fx_bridge.storages.tensor_subclasses import tensors_in


class Block(nn.Module):
    """Views, chunks of one storage, a copy or none, a write in place, and attention."""

    def __init__(self):
        super().__init__()
        self.packed = nn.Linear(8, 24)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(2, 4, 8))

    def forward(self, x):
        self.seen.add_(x)
        q, k, v = (part.view(2, 4, 2, 4).transpose(1, 2) for part in self.packed(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        largest, places = self.norm(mixed.reshape(2, 4, 8)).max(-1, keepdim=True)
        return (x.contiguous() + largest * 2 + largest * 2.0).expand(2, 4, 8), places


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        # Two names of one storage.
        self.blocks[2].packed.bias = nn.Parameter(self.blocks[0].packed.bias.data[:24])

    def forward(self, x):
        places = []
        for block in self.blocks:
            x, found = block(x)
            places.append(found)
        return x, *places


@pytest.fixture
def captured():
    return capture(Blocks().eval(), (torch.ones(2, 4, 8),))


def described(replay):
    """Sizes of all values, and which of them share a storage."""
    storages, found = {}, {}
    for node, value in replay.values.items():
        found[node.name] = [
            (
                *(tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, t.device),
                t.untyped_storage().nbytes(),
                storages.setdefault(memory_of(t), len(storages)),
            )
            for t in tensors_in(value)
        ]
    return found


def observed(captured):
    replay = Replay(captured.module)
    replay.replay()
    table = captured.storage_table
    return described(replay), dict(table.storages), dict(table.writes), node_flops(captured)


def test_values_storages_writes_and_flops_are_those_of_runs_without_repeats(captured, monkeypatch):
    made = []
    again = RepeatedCalls.again

    def counted(self, call):
        known = again(self, call)
        made.append(known is not None)
        return known

    monkeypatch.setattr(RepeatedCalls, "again", counted)
    repeated = observed(captured)
    assert sum(made) > len(made) / 2
    monkeypatch.setattr(RepeatedCalls, "again", lambda self, call: None)
    monkeypatch.setattr(RepeatedCalls, "fake", lambda self, tensor: None)
    assert observed(captured) == repeated


def call(replay, *args, target=torch.ops.aten.add.Tensor):
    return replay._repeated.call(target, args, {})


def test_numbers_of_other_types_are_other_calls(captured):
    replay = Replay(captured.module)
    x = replay.fake(torch.ones(2))
    assert call(replay, x, 1).key == call(replay, x, 1).key
    assert len({call(replay, x, number).key for number in (1, 1.0, True)}) == 3


def test_tensors_that_share_a_storage_are_another_call(captured):
    replay = Replay(captured.module)
    both = torch.ones(4)
    x, y, z = (replay.fake(tensor) for tensor in (both[:2], both[:2], torch.ones(4)[:2]))
    assert call(replay, x, y).key != call(replay, x, z).key
    assert call(replay, x, x).key == call(replay, y, y).key


def test_a_model_on_repeating_fakes_yields_what_it_does_on_fakes():
    model, found = Blocks().eval(), []
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), RepeatingFakeTensorMode()):
        with torch.no_grad(), mode:
            fakes = {name: torch.empty_like(t) for name, t in model.state_dict().items()}
            made = torch.func.functional_call(model, fakes, torch.empty(2, 4, 8))
        found.append([(t.shape, t.stride(), t.dtype, t.device) for t in made])
        assert all(isinstance(tensor, FakeTensor) for tensor in made)
    assert found[0] == found[1]


def test_fakes_that_repeat_still_have_no_values():
    with RepeatingFakeTensorMode():
        for _ in range(2):
            with pytest.raises(DataDependentOutputException):
                torch.ones(3).sum().item()
