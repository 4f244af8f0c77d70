"""Calls with other numbers and flags than those of the capture."""

import pytest
import torch
from torch import nn

from fx_bridge import Costs, check_equivalence, partition_module
from solver import Device, Interconnect, MiB, PartitionError

DEVICES = [Device("a", MiB), Device("b", MiB)]


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, scale=1.0, causal=True, mask=None, *, mode="sum"):
        y = self.first(x) * scale
        if mask is not None:
            y = y * mask
        y = self.second(y) if causal else y
        return y.sum(0) if mode == "sum" else y


X = torch.randn(4, 8)


def built(how):
    result = partition_module(
        model := Scaled(),
        (X, 0.5, True, None),
        {"mode": "rows"},
        devices=DEVICES,
        costs=Costs(interconnect=Interconnect()),
    )
    split = result.split()
    return model, split if how == "split" else result.place({"a": "cpu:0", "b": "cpu:1"})


@pytest.mark.parametrize("how", ["split", "placed"])
def test_other_constants_are_refused(how):
    model, split = built(how)
    inputs, keywords = (X, 0.5, True, None), {"mode": "rows"}
    assert check_equivalence(model, split, inputs, keywords).equal
    assert torch.equal(split(X[:2], *inputs[1:], **keywords), model(X[:2], *inputs[1:], **keywords))
    for others, name, shown in (
        ((X, 2.0, True, None), "scale", "2.0"),
        ((X, 0.5, False, None), "causal", "False"),
        ((X, 0.5, True, torch.ones(8)), "mask", "a tensor"),
        ((X, torch.tensor(0.5), True, None), "scale", "a tensor"),
    ):
        with pytest.raises(PartitionError, match=f"'{name}' was .* is {shown} now"):
            split(*others, **keywords)
    with pytest.raises(PartitionError, match=r"'mode' was 'rows' .* 'sum' now"):
        split(*inputs, mode="sum")


@pytest.mark.parametrize("how", ["split", "placed"])
def test_inputs_that_were_not_captured_are_refused_in_one_line(how):
    _, split = built(how)
    inputs, keywords = (X, 0.5, True, None), {"mode": "rows"}
    for others, named, reason in (
        ((X, 0.5), {}, r"missing a required argument: 'causal'"),
        (inputs, {}, r"missing a required argument: 'mode'"),
        ((*inputs, X, X), keywords, r"too many positional arguments|multiple values"),
        (inputs, {**keywords, "bias": X}, r"unexpected keyword argument 'bias'"),
        (((X, X), *inputs[1:]), keywords, r"'x' has the structure"),
    ):
        with pytest.raises(PartitionError, match=reason) as caught:
            split(*others, **named)
        assert "captured with x float32[4, 8], scale=0.5, causal=True, mask=None" in str(
            caught.value
        )
        assert "\n" not in str(caught.value)
    with pytest.raises(PartitionError, match=r"'x' is None, but .* x float32\[4, 8\]"):
        split(None, *inputs[1:], **keywords)
    assert split(mask=None, causal=True, scale=0.5, x=X, mode="rows").shape == (4, 8)
