"""A model for ``test_plan_runs.py``, large enough that its tensors outweigh torch's own numbers."""

import torch
from torch import nn


def chain():
    layers = []
    for _ in range(4):
        layers += [nn.Linear(128, 128), nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(32, 128),)
