"""Models whose placement differs: skips, branches, tied weights, writes, containers."""

import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.split.by_plan import split_by_plan
from solver import PartitionPlan


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 8), nn.Dropout(0.3)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.layers(x))


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        first = self.a(x)
        second = torch.tanh(self.b(first))
        third = self.c(second) + first * x
        return third.exp(), first + third + torch.arange(6, device=x.device)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.left = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.right = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8))

    def forward(self, x):
        stem = self.stem(x)
        left, right = self.left(stem), self.right(stem)
        return (left * right).sum(1), left


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(torch.relu(self.body(self.embedding(tokens))))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        )
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, x):
        return self.layers(x).mean((2, 3)) * self.scale


class Cached(nn.Module):
    """Takes a cache and keywords, writes the cache in place, and returns a dict."""

    def __init__(self):
        super().__init__()
        self.key, self.value = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, cache, *, scale=None, mask=None):
        key = self.key(x) * (1.0 if scale is None else scale)
        cache["sum"].add_(key.detach())
        value = self.value(cache["sum"]).masked_fill(mask, 0.0)
        return {"value": value, "nothing": None, "rest": [key, mask], "cache": cache["sum"]}


MODELS = {
    "chain": (Chain, lambda: ((torch.randn(4, 6),), {})),
    "skips": (Skips, lambda: ((torch.randn(4, 6, requires_grad=True),), {})),
    "branches": (Branches, lambda: ((torch.randn(4, 6),), {})),
    "tied": (Tied, lambda: ((torch.randint(0, 10, (3, 4)),), {})),
    "normed": (Normed, lambda: ((torch.randn(3, 2, 8, 8),), {})),
    "cached": (
        Cached,
        lambda: (
            (torch.randn(4, 6), {"sum": torch.ones(4, 6)}),
            {"mask": torch.rand(4, 6) > 0.5, "scale": torch.tensor(1.5)},
        ),
    ),
}


def build(name):
    """Return a model and its inputs, the same every time."""
    torch.manual_seed(0)
    factory, inputs = MODELS[name]
    model = factory()
    args, kwargs = inputs()
    return model, args, kwargs


def split_at(model, args, kwargs, *starts, **options):
    """Return the split of :func:`captured_and_split` alone."""
    return captured_and_split(model, args, kwargs, *starts, **options)[1]


def captured_and_split(model, args, kwargs, *starts, devices=None, chunks=1):
    """Return a model, captured, and cut into contiguous stages.

    `starts` are operators, or shares of them. Stages take the devices d0, d1, … in turn,
    `chunks` times.
    """
    captured = capture(model, args, kwargs)
    names = [node.name for node in captured.operators]
    cuts = [names.index(s) if isinstance(s, str) else round(s * len(names)) for s in starts]
    stage_of = {name: sum(at >= cut for cut in cuts) for at, name in enumerate(names)}
    count = (len(cuts) + 1) // chunks
    devices = devices or [f"d{index}" for index in range(count)]
    plan = PartitionPlan(
        {name: devices[stage % count] for name, stage in stage_of.items()},
        tuple(devices[:count]),
        {name: stage // count for name, stage in stage_of.items()},
    )
    return captured, split_by_plan(captured, plan)
