"""A plain-torch model with a strongly branching operator graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class BranchingBlock(nn.Module):
    """Three convolution branches of unequal depth, joined, with a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        part = channels // 4
        self.narrow = nn.Conv2d(channels, part, 1)
        self.middle = nn.Sequential(
            nn.Conv2d(channels, part, 1), nn.ReLU(), nn.Conv2d(part, 2 * part, 3, padding=1)
        )
        self.deep = nn.Sequential(
            nn.Conv2d(channels, part, 1),
            nn.ReLU(),
            nn.Conv2d(part, 2 * part, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * part, part, 3, padding=1),
        )
        self.join = nn.Conv2d(4 * part, channels, 1)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Return the block's input plus its joined branches."""
        branches = [self.narrow(value), self.middle(value), self.deep(value)]
        return torch.relu(value + self.join(torch.cat(branches, dim=1)))


class WideBlock(nn.Module):
    """A gated pair of wide linear layers, with much memory and little compute."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Return the block's input plus its gated value."""
        gated: torch.Tensor = torch.sigmoid(self.gate(value)) * self.value(value)
        return value + gated


class TwoTowers(nn.Module):
    """An image tower, heavy in compute, beside a feature tower, heavy in memory.

    Balancing both at once needs pieces of both towers on each device, which no contiguous cut
    of the execution order offers.
    """

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.image_blocks = nn.ModuleList(BranchingBlock(channels) for _ in range(depth))
        self.wide_blocks = nn.ModuleList(WideBlock(width) for _ in range(depth))
        self.head = nn.Linear(channels + width, 100)

    @classmethod
    def with_inputs(
        cls, *, channels: int, width: int, depth: int, image_size: int
    ) -> tuple[TwoTowers, tuple[Any, ...]]:
        """Return the model and example inputs."""
        images = torch.randn(4, 3, image_size, image_size)
        return cls(channels, width, depth), (images, torch.randn(4, width))

    def forward(self, images: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return 100 scores for each image with its features."""
        seen = torch.relu(self.stem(images))
        for block in self.image_blocks:
            seen = block(seen)
        known = features
        for block in self.wide_blocks:
            known = block(known)
        scores: torch.Tensor = self.head(torch.cat([seen.mean(dim=(2, 3)), known], dim=1))
        return scores
