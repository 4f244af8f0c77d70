"""Graphs in another mode than that of their capture."""

import copy

import pytest
import torch
from torch import nn
from torch.export import Dim

from fx_bridge import capture
from fx_bridge.placement.model import place
from tests.support.refusals import refused
from tests.support.split_checks import in_halves, in_one

X = torch.randn(8, 6)


def with_dropout(share=0.5):
    return nn.Sequential(nn.Linear(6, 6), nn.Dropout(share), nn.ReLU(), nn.Linear(6, 2))


def split_of(model, **options):
    return in_halves(capture(model, (X,), **options))


def refuses(call, mode="evaluation"):
    with refused(f"another in {mode} mode"):
        call(X)


def test_split_placed_stages_and_copies_do_not_run_in_another_mode():
    model = with_dropout().train()
    split = split_of(model)
    for module in (split, place(split), copy.deepcopy(split), place(split, copy=True)):
        module.train()
        assert module(X).shape == (8, 2)
        # By way of a module around it, as libraries do.
        around = nn.Sequential(module).eval()
        refuses(around)
        refuses(module.submod_0)
        assert around.train()(X).shape == (8, 2)
        module.submod_1.eval()
        refuses(module)
        module.train()


def test_the_other_way_round_and_with_a_symbolic_batch():
    model = with_dropout().eval()
    split = split_of(model)
    assert torch.equal(split.eval()(X), model(X))
    refuses(split.train(), "training")
    model = with_dropout().train()
    split = split_of(model, dynamic_shapes=({0: Dim.AUTO},))
    refuses(split.eval())
    assert split.train()(X[:3]).shape == (3, 2)


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2)), with_dropout(0.0)]
)
def test_models_that_are_the_same_in_both_modes_run(model):
    split = split_of(model.train())
    assert torch.equal(split.eval()(X), model(X))
    assert torch.equal(split.submod_1(split.submod_0(X)), model(X))


def test_parts_that_were_frozen_stay_so():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).train()
    model[1].eval()
    split = split_of(model)
    before = model[1].running_mean.clone()
    for mode in (True, False):
        assert torch.equal(split.train(mode)(X), model(X))
    assert torch.equal(model[1].running_mean, before)
    # The flags of the model are left as they are.
    assert [part.training for part in model.modules()] == [True, True, False]


def test_a_change_of_the_model_after_the_capture_is_not_one_of_the_split():
    model = with_dropout().train()
    split = split_of(model)
    model.eval()
    assert split(X[:2]).shape == (2, 2)
    refuses(split.eval())
    assert not model.training


def test_programs_and_compiled_splits():
    program = torch.export.export(with_dropout().train(), (X,))
    split = in_one(capture(program))
    was_training = split.training
    refuses(split.train(not was_training), "evaluation" if was_training else "training")

    split = split_of(with_dropout().train())
    compiled = torch.compile(split, backend="eager")
    assert compiled(X).shape == (8, 2)
    split.eval()
    refuses(compiled)
