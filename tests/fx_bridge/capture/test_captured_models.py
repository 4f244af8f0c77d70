"""Small and published models compute the same every time, and after a capture."""

import contextlib

import pytest
import torch
from torch.utils import _pytree as pytree

from benchmarks.coverage.all_small import small_models
from benchmarks.coverage.measure import rows_of
from experiments.zoo.configurations import CONFIGURATIONS
from fx_bridge import capture
from solver import PartitionError
from tests.support.model_state import left_as_it_was

SMALL = small_models()


def captured(configuration, model, args, kwargs):
    with left_as_it_was(model), contextlib.suppress(PartitionError):
        capture(model, args, kwargs, constants=getattr(configuration, "constants", ()))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if each.package is None else pytest.mark.nightly)
        for name, each in SMALL.items()
    ],
)
def test_small_models_run_on_their_inputs_and_are_the_same_every_time_and_after_a_capture(name):
    small = SMALL[name]
    if name == "packed-int8-mlp" and "x86" not in torch.backends.quantized.supported_engines:
        pytest.skip("torch has no quantised kernels here")
    if small.package is not None:
        pytest.importorskip(small.package)
    outputs = []
    for is_captured in (False, True):
        model, args, kwargs = small.build()
        assert not model.training
        if is_captured:
            captured(small, model, args, kwargs)
        torch.manual_seed(1)
        with torch.set_grad_enabled(small.trained):
            outputs.append(model(*args, **kwargs))
    # A capture lets pytrees look into caches.
    leaves = [filter(torch.is_tensor, pytree.tree_leaves(each)) for each in outputs]
    pairs = [*zip(*leaves, strict=True)]
    assert pairs and all(torch.equal(*pair) for pair in pairs)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_published_models_are_as_before_after_a_capture(name):
    package = CONFIGURATIONS[name].package
    if package is not None:
        pytest.importorskip(package)
    captured(CONFIGURATIONS[name], *CONFIGURATIONS[name].build())


@pytest.mark.parametrize(
    ("name", "how", "equal", "gradients"),
    [
        ("realnvp", "export", True, True),
        ("hamiltonian", "make_fx", True, None),
        ("autocast-block-inside", "export", True, True),
    ],
)
def test_stages_compute_what_small_models_compute(name, how, equal, gradients):
    *_, row = rows_of(SMALL[name])
    assert (row.step, row.reason, row.how, row.stages) == ("", "", how, 4)
    assert (row.equal, row.gradients_equal) == (equal, gradients)


@pytest.mark.parametrize("name", ["branch-on-data", "experts-if-any", "scripted-part"])
def test_models_without_a_graph_say_why(name):
    *_, row = rows_of(SMALL[name])
    assert row.step == "capture"
    assert row.reason.startswith("cannot capture")
