"""Regions of another grad mode stop gradients in the graph where they do in the model."""

import pytest
import torch
from torch import nn

from fx_bridge import capture
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.two_calls import captured_like_eager


def distilled(run):
    """A teacher, a student, and a forward that is given."""
    layers = {name: nn.Linear(4, 4) for name in ("teacher", "student")}
    return module_with(lambda self, x: self.student(x) + self.run(self, x), run=run, **layers)


def region(self, x):
    with torch.inference_mode():
        return self.teacher(x)


@torch.inference_mode()
def decorated(self, x):
    return self.teacher(x)


def left(self, x):
    with torch.no_grad(), torch.inference_mode(False):
        return self.teacher(x)


@pytest.mark.parametrize(
    ("run", "remedy"), [(region, "no_grad"), (decorated, "no_grad"), (left, "enable_grad")]
)
def test_regions_of_inference_mode_are_refused(run, remedy):
    with refused("uses torch.inference_mode", " at ", f"write torch.{remedy}"):
        capture(distilled(run), (torch.randn(3, 4),))


def test_a_region_without_gradients_around_it_is_none():
    with torch.no_grad():
        captured_like_eager(lambda: distilled(region), torch.randn(3, 4))


@torch.no_grad()
def no_grad(self, x):
    return self.teacher(x)


def set_by_calls(self, x):
    torch.set_grad_enabled(False)
    y = self.teacher(x)
    torch._C._set_grad_enabled(True)
    return y


def gradients_within(self, x):
    with torch.no_grad():
        y = self.teacher(x)
        with torch.enable_grad():
            return y * self.teacher(x)


@pytest.mark.parametrize("run", [no_grad, set_by_calls, gradients_within], ids=lambda r: r.__name__)
def test_other_grad_modes_are_kept_without_a_note(run):
    assert not captured_like_eager(lambda: distilled(run), torch.randn(3, 4)).note


def test_a_grad_mode_that_forward_leaves_is_noted_and_put_back():
    def leaving(self, x):
        y = self.teacher(x)
        torch.set_grad_enabled(False)
        return y

    captured = capture(distilled(leaving), (torch.randn(3, 4),))
    assert torch.is_grad_enabled()
    assert captured.note == "forward leaves gradients switched off, which the graph does not"
