"""Models are built the same every time, and their code cannot spoil an answer."""

import sys

import pytest
import torch

from experiments.zoo.building import LoadedModel, ModelSpec, build_model, capture_model
from experiments.zoo.models import ZOO
from solver import PartitionError


def spec_of(factory):
    return ModelSpec("mine", "a test", factory)


def test_weights_are_the_same_every_time_and_leave_the_random_state_alone():
    before = torch.random.get_rng_state()
    first, second = (build_model(ZOO["mlp"]).module.state_dict() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], second[key]) for key in first)


def fails():
    raise RuntimeError("first line\nsecond line")


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (fails, "RuntimeError: first line$"),
        (lambda: None, "returned a NoneType"),
        (lambda: torch.nn.ReLU(), "returned a ReLU"),
        (lambda: (torch.nn.ReLU(),), r"return \(module, args\)"),
        (lambda: (1, ()), "first value is a int"),
        (lambda: (torch.nn.ReLU(), torch.ones(1)), "args are a Tensor"),
        (lambda: (torch.nn.ReLU(), (), 3), "kwargs are not a dict"),
        (lambda: (torch.nn.ReLU(), (), {1: 2}), "kwargs are not a dict"),
    ],
)
def test_a_wrong_factory_is_named(factory, says):
    with pytest.raises(PartitionError, match=says) as caught:
        build_model(spec_of(factory))
    assert "'mine'" in str(caught.value)


def test_keyword_arguments_are_kept():
    loaded = build_model(spec_of(lambda: (torch.nn.ReLU(), (), {"input": torch.ones(1)})))
    assert isinstance(loaded, LoadedModel)
    assert list(loaded.kwargs) == ["input"]


class Talking(torch.nn.Module):
    """Prints when it is called, and ends the program where it is asked to."""

    def __init__(self, code):
        super().__init__()
        self.code = code

    def forward(self, x):
        sys.stdout.write("called\n")
        if self.code is not None:
            sys.exit(self.code)
        return x + 1


def test_a_captured_model_prints_no_answer(capsys):
    captured = capture_model(LoadedModel("mine", Talking(None), (torch.ones(2),)))
    assert [node.name for node in captured.operators] == ["add"]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "called" in printed.err


def test_a_captured_model_does_not_end_the_program():
    with pytest.raises(PartitionError, match=r"model 'mine' calls sys\.exit\(3\); let it return"):
        capture_model(LoadedModel("mine", Talking(3), (torch.ones(2),)))
