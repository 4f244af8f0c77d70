"""Well-known architectures in plain torch that the used libraries lack.

Each function returns a module and its example inputs, made on the default device.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

Made = tuple[Any, tuple[Any, ...]]


def transformer() -> Made:
    """Return ``nn.Transformer`` in its own defaults, the base model of Vaswani et al. (2017)."""
    return nn.Transformer(batch_first=True), (torch.zeros(8, 128, 512), torch.zeros(8, 64, 512))


def recurrent_language_model() -> Made:
    """Return the large LSTM language model of Zaremba et al. (2014), on 35 tokens."""

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10000, 1500)
            self.recurrence = nn.LSTM(1500, 1500, num_layers=2, batch_first=True)
            self.head = nn.Linear(1500, 10000)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            states, _ = self.recurrence(self.embedding(tokens))
            scores: torch.Tensor = self.head(states)
            return scores

    return LanguageModel(), (torch.zeros(20, 35, dtype=torch.long),)


def vgg16() -> Made:
    """Return configuration D of Simonyan and Zisserman (2014)."""
    layers: list[nn.Module] = []
    channels = 3
    for count, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for width, following in ((512 * 7 * 7, 4096), (4096, 4096)):
        layers += [nn.Linear(width, following), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000)), (torch.zeros(1, 3, 224, 224),)


def densenet121() -> Made:
    """Return DenseNet-121 of Huang et al. (2017), whose layers read all earlier ones of a block."""

    def normed(channels: int, convolution: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True), convolution)

    class Dense(nn.Module):
        def __init__(self, channels: int, growth: int = 32) -> None:
            super().__init__()
            self.narrow = normed(channels, nn.Conv2d(channels, 4 * growth, 1, bias=False))
            wide = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
            self.wide = normed(4 * growth, wide)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat((x, self.wide(self.narrow(x))), 1)

    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for block, count in enumerate((6, 12, 24, 16)):
        if block:
            layers += [
                normed(channels, nn.Conv2d(channels, channels // 2, 1, bias=False)),
                nn.AvgPool2d(2),
            ]
            channels //= 2
        for _ in range(count):
            layers.append(Dense(channels))
            channels += 32
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(inplace=True), *head), (
        torch.zeros(1, 3, 224, 224),
    )


def unet() -> Made:
    """Return the U-Net of Ronneberger et al. (2015), with padding that keeps sizes."""

    def double(channels: int, width: int) -> nn.Sequential:
        first = (nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True))
        second = (nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True))
        return nn.Sequential(*first, *second)

    widths = (64, 128, 256, 512, 1024)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = list(zip((1, *widths), widths, strict=False))
            self.down = nn.ModuleList(double(a, b) for a, b in pairs)
            self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs[1:])
            self.merge = nn.ModuleList(double(2 * a, a) for a, _ in pairs[1:])
            self.head = nn.Conv2d(64, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            skips: list[torch.Tensor] = []
            for double_convolution in self.down:
                x = double_convolution(nn.functional.max_pool2d(x, 2) if skips else x)
                skips.append(x)
            for level in range(len(widths) - 2, -1, -1):
                x = self.merge[level](torch.cat((skips[level], self.up[level](x)), 1))
            scores: torch.Tensor = self.head(x)
            return scores

    return UNet(), (torch.zeros(1, 1, 512, 512),)


def dlrm() -> Made:
    """Return the recommendation model of Naumov et al. (2019) as for Criteo's Kaggle data."""
    # Distinct values of the 26 categorical features of that data set.
    rows = (
        *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
        *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
    )
    width, batch = 16, 128

    def dense(*widths: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers)

    class Dlrm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(count, width, mode="sum") for count in rows)
            self.bottom = dense(13, 512, 256, 64, width)
            vectors = len(rows) + 1
            self.top = dense(width + vectors * (vectors - 1) // 2, 512, 256)
            self.head = nn.Linear(256, 1)
            self.pairs = nn.Buffer(torch.tril_indices(vectors, vectors, offset=-1))

        def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
            dense_vector = self.bottom(numbers)
            vectors = [dense_vector]
            for index, table in enumerate(self.tables):
                vectors.append(table(categories[:, index : index + 1]))
            stacked = torch.stack(vectors, 1)
            products = stacked @ stacked.transpose(1, 2)
            chosen = products[:, self.pairs[0], self.pairs[1]]
            scores: torch.Tensor = self.head(self.top(torch.cat((dense_vector, chosen), 1)))
            return torch.sigmoid(scores)

    inputs = torch.zeros(batch, 13), torch.zeros(batch, len(rows), dtype=torch.long)
    return Dlrm(), inputs
