"""Tests of where and why a capture stopped, in one line."""

import pytest
import torch
from torch import nn

from fx_bridge.capture.model.messages import failure, remedy
from tests.support.modules import module_with


def test_a_failure_names_module_line_and_error():
    # Frames of torch and of Python's own library do not hide the model's.
    def inner(self, x):
        return sorted([x, x], key=lambda _: 1 / 0)

    parts = nn.Sequential(nn.ReLU(), module_with(inner))
    model = module_with(lambda self, x: self.parts(x), parts=parts)
    with pytest.raises(ZeroDivisionError) as caught:
        model(torch.ones(2))
    text = failure(caught.value, model)
    assert text.startswith(f"in module 'parts.1' at {__file__}:")
    assert text.endswith("(ZeroDivisionError: division by zero)")
    assert "'return sorted([x, x], key=lambda _: 1 / 0)'" in text


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
