"""Decoders of equal layers, and plans of theirs that keep layers whole."""

import functools
import itertools
import random

import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.capture.layers import layer_calls
from solver import PartitionPlan
from tests.support.recomputed_stages import training_problem

WIDTH, HEADS, STEPS, WORDS = 8, 2, 5, 11


class Attention(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.qkv, self.out, self.fused = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), fused

    def forward(self, x):
        shape = *x.shape[:2], 3, HEADS, WIDTH // HEADS
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax(q @ k.mT / 2, -1) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self, fused=False):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = Attention(fused)
        up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(up, nn.GELU(), down)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Plain(nn.Module):
    """A layer of few operators, which is captured quickly."""

    def __init__(self, dropout=0.0):
        super().__init__()
        layers = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(dropout), nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.body(x)


class Decoder(nn.Module):
    def __init__(self, count, layer, **options):
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(layer(**options) for _ in range(count))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


TOKENS = torch.arange(2 * STEPS).reshape(2, STEPS)


def small():
    """The model and inputs for commands."""
    torch.manual_seed(0)
    return Decoder(4, Plain), (TOKENS,)


@functools.cache
def captured_decoder(count, layer=Plain, **options):
    """A decoder, its graph, and its problem for one device."""
    torch.manual_seed(0)
    model = Decoder(count, layer, **options)
    captured = capture(model, (TOKENS,))
    return model, captured, training_problem(captured, ["cuda:0"], microbatches=4)


def plan_of_layers(captured, counts):
    """A plan of stages with so many layers each, on devices in order."""
    devices = [f"cuda:{at}" for at, count in enumerate(counts) for _ in range(count)]
    order = list(dict.fromkeys(call for call in layer_calls(captured).values() if call))
    assignment, now = {}, devices[0]
    for name, call in layer_calls(captured).items():
        now = devices[order.index(call)] if call else now
        assignment[name] = now
    return PartitionPlan(assignment, tuple(f"cuda:{at}" for at in range(len(counts))))


def random_counts(rng, count, most_stages=4):
    """So many layers for each of some stages."""
    cuts = rng.sample(range(1, count), min(count - 1, rng.randrange(most_stages)))
    edges = [0, *sorted(cuts), count]
    return [end - begin for begin, end in itertools.pairwise(edges)]


def random_layers(rng, count):
    """The numbers of some layers, one or more."""
    return sorted(rng.sample(range(count), rng.randint(1, count)))


def rng_of(*seed):
    return random.Random(str(seed))
