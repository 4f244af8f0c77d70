"""Batch norm with a cumulative average counts its batches in the graph as in the model."""

import pytest
import torch
from torch import nn

from tests.support.two_calls import captured_like_eager


class Shared(nn.Module):
    """One batch norm that is called twice."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 4)

    def forward(self, x):
        return self.norm(self.linear(self.norm(x)))


@pytest.mark.parametrize(
    "make",
    [
        Shared,
        lambda: Shared().eval(),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None, affine=False)),
        lambda: nn.BatchNorm1d(4, momentum=None, track_running_stats=False),
    ],
    ids=["shared", "evaluated", "without weights", "without statistics"],
)
def test_a_cumulative_average_is_that_of_the_model(make):
    assert not captured_like_eager(make, torch.randn(6, 4)).note
