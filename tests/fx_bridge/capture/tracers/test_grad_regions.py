"""Grad modes within autocast are kept, whatever encloses what."""

import pytest
import torch
from torch import nn

from tests.support.two_calls import captured_like_eager


class Teacher(nn.Module):
    """Two layers, and a forward that is given."""

    def __init__(self, run):
        super().__init__()
        self.teacher, self.student = nn.Linear(4, 4), nn.Linear(4, 4)
        self.run = run

    def forward(self, x):
        return self.run(self, x).float()


def all_of_it(self, x):
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        y = self.teacher(x)
    return self.student(x) * y


def a_part(self, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = self.student(x)
        with torch.no_grad():
            y = y * self.teacher(x)
        return y + self.student(x)


def around(self, x):
    with torch.no_grad():
        y = self.student(x)
        with torch.autocast("cpu", torch.bfloat16):
            y = self.teacher(x) + y
    return self.student(x) * y


def switched_off(self, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = self.student(x)
        with torch.autocast("cpu", enabled=False), torch.no_grad():
            y = y * self.teacher(x)
    return y


def gradients_inside(self, x):
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        y = self.teacher(x)
        with torch.enable_grad():
            y = y * self.student(x)
    return y


@pytest.mark.parametrize(
    "run",
    [all_of_it, a_part, around, switched_off, gradients_inside],
    ids=lambda run: run.__name__,
)
def test_gradients_stop_where_they_stop_in_the_model(run):
    captured_like_eager(lambda: Teacher(run), torch.randn(3, 4))
