"""Questions that forward asks of its surroundings, noted in the capture."""

import sys
import types

import pytest
import torch
from torch import nn

from fx_bridge import capture
from fx_bridge.capture.python.surroundings import GRAD_MODE, GRADIENTS, STRIDES
from tests.support.modules import module_with

X = torch.randn(4, 8)


def asking(question):
    def forward(self, x):
        return self.linear(x) * (1.0 if self.question(self, x) else 2.0)

    return module_with(forward, linear=nn.Linear(8, 8), question=question)


@pytest.mark.parametrize(
    "question, noted",
    [
        (lambda _, x: torch.is_grad_enabled(), GRAD_MODE),
        (lambda _, x: torch._C.is_grad_enabled(), GRAD_MODE),
        (lambda _, x: torch.is_inference_mode_enabled(), "torch.is_inference_mode_enabled()"),
        (lambda _, x: torch.get_default_dtype().is_complex, "torch.get_default_dtype()"),
        (lambda _, x: x.requires_grad, GRADIENTS),
        (lambda model, x: model.linear.weight.requires_grad, GRADIENTS),
        (lambda _, x: (x + 1).is_leaf, GRADIENTS),
        (lambda _, x: x.is_contiguous(), STRIDES),
        (lambda _, x: x.stride(0) == 8, STRIDES),
        (lambda _, x: x.dim_order() == (0, 1), STRIDES),
    ],
)
def test_questions_of_the_model_are_noted_with_their_answers(question, noted):
    captured = capture(asking(question), (X,))
    assert captured.asked.keys() == {noted}
    if noted.startswith("torch."):
        assert captured.asked[noted] == eval(noted)


def test_names_that_were_imported_are_noted_and_put_back():
    module = types.ModuleType("imports_a_question")
    exec(
        "from torch import is_grad_enabled\ndef ask(*_):\n    return is_grad_enabled()",
        vars(module),
    )
    original = module.is_grad_enabled
    sys.modules[module.__name__] = module
    try:
        assert capture(asking(module.ask), (X,)).asked == {GRAD_MODE: True}
    finally:
        del sys.modules[module.__name__]
    assert module.is_grad_enabled is original is torch.is_grad_enabled


def test_what_torch_asks_for_itself_is_not_noted():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    assert capture(layer, (torch.randn(2, 4, 8),)).asked == {}

    def without(model, x):
        with torch.no_grad():
            return model.linear(x).sum().dtype.is_floating_point

    assert capture(asking(without), (X,)).asked == {}
