"""Tests of where and why a capture stopped, in one line."""

import sys
import warnings

import pytest
import torch
from torch import nn

from fx_bridge.capture.model.messages import (
    describe,
    failure,
    quiet,
    remedy,
)
from fx_bridge.equivalence.calls import first_line
from tests.support.modules import module_with


def test_the_first_line_of_a_message():
    assert first_line(ValueError("\n  \n  first \nsecond")) == "first"
    assert first_line(ValueError()) == ""
    assert len(first_line(ValueError("x" * 1000))) == 200


def test_names():
    assert describe(nn.Linear) == describe(nn.Linear(1, 1)) == "Linear"


class Inner(nn.Module):
    def forward(self, x):
        return sorted([x, x], key=lambda _: 1 / 0)


def outer(self, x):
    return self.parts(x)


def test_a_failure_names_module_line_and_error():
    """Tests that frames of torch and of Python's own library do not hide the model's."""
    model = module_with(outer, parts=nn.Sequential(nn.ReLU(), Inner()))
    with pytest.raises(ZeroDivisionError) as caught:
        model(torch.ones(2))
    text = failure(caught.value, model)
    assert text.startswith(f"in module 'parts.1' at {__file__}:")
    assert text.endswith("(ZeroDivisionError: division by zero)")
    assert "'return sorted([x, x], key=lambda _: 1 / 0)'" in text


def test_a_failure_inside_of_torch_names_the_module():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(1, 2))
    text = failure(caught.value, model)
    assert text.startswith("in module '1' at ")
    assert "(RuntimeError: mat1 and mat2" in text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Found <class 'Cache'> in output, which is not a known type.", "use_cache=False"),
        ("Unsupported input type <class 'Cache'>", "register that type"),
        ("There was no fake impl registered for <op>", "register_fake"),
        ("anything else", "check that the model runs"),
    ],
)
def test_remedies(text, what):
    assert what in remedy([RuntimeError(text)], nn.Linear(1, 1))


def test_quiet_hides_warnings_and_stderr_and_only_for_a_while(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with quiet():
            warnings.warn("hidden", stacklevel=1)
            sys.stderr.write("hidden")
        with pytest.raises(UserWarning):
            warnings.warn("seen", stacklevel=1)
    assert capsys.readouterr().err == ""
