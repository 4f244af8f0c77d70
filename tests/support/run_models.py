"""Models that tests name: a large one, and one that is exported as it does not compute.

The tensors of the first outweigh torch's own numbers.
"""

import torch
from torch import nn


def chain():
    layers = []
    for _ in range(4):
        layers += [nn.Linear(128, 128), nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(32, 128),)


class TracedApart(nn.Module):
    """Rounds otherwise while it is exported, as by another kernel."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        y = self.first(x)
        return self.last(y * (1 / 3) if torch.compiler.is_exporting() else y / 3)


def traced_apart():
    return TracedApart(), (torch.randn(4, 16),)
