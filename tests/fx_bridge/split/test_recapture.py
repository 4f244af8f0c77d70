"""Calls with other shapes, dtypes or another precision than those of the capture."""

import copy
import gc

import pytest
import torch
from torch import nn

from fx_bridge import capture, check_equivalence, partition_module
from fx_bridge.placement.model import place
from solver import Device, MiB, PartitionError
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.split_checks import in_halves, in_one

X = torch.randn(4, 8)


class Mixed(nn.Module):
    """Computes in float32 in between, and goes on in float32 or in what came in."""

    def __init__(self, back_to_input=False):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.back_to_input = back_to_input

    def forward(self, x):
        x = self.first(x)
        y = x.to(torch.float32).softmax(-1)
        return self.second(y.to(x.dtype) if self.back_to_input else y)


def averaged(self, x):
    """Uses the batch as a number, or as a tensor made of it."""
    count = torch.tensor(float(x.shape[0])) if self.as_tensor else x.shape[0]
    return self.linear(x).sum(0) / count


def autocast(enabled=True):
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


def module(how, captured):
    split = in_halves(captured)
    return split if how == "split" else place(split)


@pytest.mark.parametrize("how", ["split", "placed"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_graph_runs_under_autocast_like_its_model(how, inside):
    model = Mixed()
    with autocast(inside):
        captured = capture(model, (X,))
    found = module(how, captured)
    for under in (True, False):
        with autocast(under):
            report = check_equivalence(model, found, (X,), gradients=True, gradient_rtol=0.0)
        assert report.equal, report.differences
    # Copies that were made before know it too.
    with autocast():
        assert torch.equal(copy.deepcopy(module(how, captured))(X), model(X))


@pytest.mark.parametrize("how", ["split", "placed"])
def test_a_dtype_that_forward_reads_is_refused_under_another_precision(how):
    model = Mixed(back_to_input=True)
    outside = module(how, capture(model, (X,)))
    with autocast():
        inside = module(how, capture(model, (X,)))
        said = "without autocast and is another under torch.autocast('cpu', torch.bfloat16): "
        with refused(said, "capture the model under torch.autocast"):
            outside(X)
        assert check_equivalence(model, inside, (X,), gradients=True, gradient_rtol=0.0).equal
    assert torch.equal(outside(X), model(X))
    with pytest.raises(PartitionError, match=r"is another without: .*; call it under torch"):
        inside(X)


def test_casts_that_are_written_to_are_refused_under_another_precision():
    def forward(self, x):
        x = self.linear(x)
        return x.to(torch.bfloat16).add_(1) + x

    captured = capture(module_with(forward, linear=nn.Linear(8, 8)), (X,))
    split = in_one(captured)
    with autocast(), pytest.raises(PartitionError, match="writes in place to what it casts"):
        split(X)


def test_a_model_that_is_gone_is_not_believed_under_another_precision():
    model = Mixed()
    split = in_halves(capture(model, (X,)))
    del model
    gc.collect()
    with autocast(), pytest.raises(PartitionError, match="the model is gone, so its graph"):
        split(X)


def test_sizes_of_a_capture_under_autocast_are_those_of_its_run():
    model, devices = Mixed(), [Device("a", MiB)]
    with autocast():
        result = partition_module(model, (X,), devices=devices)
    wide = partition_module(model, (X,), devices=devices)
    sizes = {op.name: op.value_bytes for op in result.problem.operators}
    assert (sizes["linear"], sizes["to"], sizes["linear_1"]) == (4 * 8 * 2, 4 * 8 * 4, 4 * 8 * 2)
    assert {op.name: op.value_bytes for op in wide.problem.operators}["linear"] == 4 * 8 * 4
    with autocast():
        # What is on around the export of the graph says nothing of the capture.
        again = partition_module(wide.captured, devices=devices)
    assert again.problem == wide.problem
    assert "captured by export under torch.autocast('cpu', torch.bfloat16)" in str(result)


@pytest.mark.parametrize("how", ["split", "placed"])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_batch_that_forward_uses_as_a_number_is_refused(how, as_tensor):
    model = module_with(averaged, linear=nn.Linear(8, 8), as_tensor=as_tensor)
    found = module(how, capture(model, (X,)))
    said = "captured with x float32[4, 8] and is another for x float32[2, 8]: "
    with refused(said, "dynamic_shapes"):
        found(X[:2])
    assert torch.equal(found(X), model(X))


@pytest.mark.parametrize("how", ["split", "placed"])
def test_a_batch_that_forward_never_reads_runs_and_shapes_that_do_not_fit_are_one_line(how):
    model = Mixed()
    found = module(how, capture(model, (X,)))
    assert torch.equal(found(X[:2]), model(X[:2]))
    for wrong in (X[:, :4], X.double(), X[0, 0], torch.ones(4, 8, dtype=torch.int64)):
        with refused("x float32[4, 8]", "dynamic_shapes"):
            found(wrong)


def test_a_program_without_its_model_says_what_it_was_captured_with():
    program = torch.export.export(Mixed(), (X,))
    split = in_halves(capture(program))
    assert split(X).shape == (4, 8)
    with pytest.raises(PartitionError, match=r"x float32\[4, 4\] .* with x float32\[4, 8\]"):
        split(X[:, :4])
    with autocast(), pytest.raises(PartitionError, match=r"under torch.autocast.*and fails"):
        split(X)
