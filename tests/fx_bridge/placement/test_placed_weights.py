"""Weights on devices: each once, overlapping ones in one piece of memory."""

import torch
from torch import nn

from fx_bridge.placement.weights import PlacedWeights
from fx_bridge.storages.mutations import memory_of

HOST, OTHER = torch.device("cpu"), torch.device("cpu:1")


def moved(tensors, device=OTHER, **options):
    weights = PlacedWeights(HOST, **options)
    weights.add(tensors, device)
    memo = weights.memo(device)
    return [memo[id(tensor)] for tensor in tensors]


def test_overlapping_tensors_stay_one_piece_of_memory():
    base = torch.arange(100.0)
    pieces = [nn.Parameter(base[10:30]), base[20:40].view(4, 5).t(), base[24:26].view(torch.int32)]
    pieces.append(base[60:70])
    made = moved(pieces)
    for piece, copy in zip(pieces, made, strict=True):
        assert torch.equal(piece, copy)
        assert piece.stride() == copy.stride()
        assert memory_of(piece) != memory_of(copy)
    assert len({memory_of(copy) for copy in made[:3]}) == 1
    assert memory_of(made[3]) != memory_of(made[0])
    # Slices of one file do not take the file along.
    assert made[0].untyped_storage().nbytes() <= (40 - 10) * 4 + 16
    with torch.no_grad():
        made[0][10:].fill_(7.0)
    assert made[1].t().reshape(-1)[:10].tolist() == [7.0] * 10
    on_meta = moved(pieces, torch.device("meta"))
    assert len({memory_of(copy) for copy in on_meta[:3]}) == 1


def test_empty_and_sparse_tensors():
    tensors = [torch.empty(0), torch.ones(3).to_sparse(), torch.tensor(2.0), torch.empty(0, 3)]
    for tensor, made in zip(tensors, moved(tensors), strict=True):
        assert made.shape == tensor.shape
        assert made.layout == tensor.layout


def test_what_is_not_at_home_stays():
    elsewhere = torch.ones(2, device="meta")
    weights = PlacedWeights(HOST)
    weights.add([elsewhere], OTHER)
    assert weights.memo(OTHER)[id(elsewhere)] is elsewhere
