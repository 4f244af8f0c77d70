"""Published shapes of models that do not fit, as chains of units with roofline times."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_sheets import DATA_SHEETS

from experiments.planners.offload_rules import OffloadChain
from fx_bridge.costs.device_specs import DeviceSpec
from solver import Device, Interconnect, Link, Operator, PartitionProblem, Weight
from solver.model.devices import STAGING_HOST
from solver.model.job import Host, Job
from solver.offload.instance import OffloadInstance

ITEM = 2
USABLE = 0.9
"""Share of a device that weights, caches and buffers may take; of 24 GB, of 10**9 bytes each."""
GB = 10**9


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    experts: int = 1
    chosen: int = 1


SHAPES = {
    "Llama-3-8B": Shape(32, 4096, 32, 8, 128, 14336, 128256),
    "Qwen3-32B": Shape(64, 5120, 64, 8, 128, 25600, 151936),
    "Llama-3-70B": Shape(80, 8192, 64, 8, 128, 28672, 128256),
    "Mixtral-8x7B": Shape(32, 4096, 32, 8, 128, 14336, 32000, 8, 2),
}
UNET = "SDXL UNet"

SPECS = {
    # NVIDIA's page of the card; tensor rate with float32 accumulation.
    "rtx-3060": DeviceSpec("rtx-3060", {"bfloat16": 25_300 * GB}, 360 * GB, 5_000),
    **DATA_SHEETS,
    "desktop": DeviceSpec("desktop", 1_500 * GB, 60 * GB),
    "server": DeviceSpec("server", 20_000 * GB, 250 * GB),
}
LINKS = {"rtx-3060": 12 * GB}
"""Bytes a second from the host; others have 25 GB/s."""


@dataclass(frozen=True)
class Work:
    batch: int
    tokens: int
    context: int


WORKS = {
    "decode B 1": Work(1, 1, 4096),
    "decode B 32": Work(32, 1, 2048),
    "prefill 4k": Work(1, 4096, 4096),
}
DENOISE = "denoise"


@dataclass(frozen=True)
class Part:
    """A unit before it has times: what it holds, reads and computes, and the block it is in."""

    name: str
    block: str | None
    weight_bytes: int
    flops: float
    cache_bytes: int = 0
    read_bytes: float | None = None
    is_experts: bool = False


def decoder_parts(shape: Shape, work: Work) -> Iterator[Part]:
    """Yield embedding, halves of layers, and head."""
    tokens = work.batch * work.tokens
    hidden, kv = shape.hidden, shape.kv_heads * shape.head_dim
    queries = shape.heads * shape.head_dim
    attention = hidden * (2 * queries + 2 * kv)
    cache = 2 * kv * ITEM * work.batch * work.context
    # Prefill attends to half of the square; decode to all that is cached.
    attended = work.context / 2 if work.tokens > 1 else work.context
    expert = 3 * hidden * shape.inner
    # Experts that some token chooses, if each token chooses evenly (docs/offload.md).
    missed = (1 - shape.chosen / shape.experts) ** tokens
    read = expert * shape.experts * (1 - missed) if shape.experts > 1 else expert
    embedding = shape.vocabulary * hidden
    yield Part("embedding", None, embedding * ITEM, 0, 0, tokens * hidden * ITEM)
    for layer in range(shape.layers):
        block = f"layer {layer}"
        flops = 2 * tokens * attention + 4 * tokens * attended * queries
        size = attention * ITEM
        yield Part(f"attention {layer}", block, size, flops, cache, size + cache)
        flops = 2 * tokens * expert * shape.chosen
        size = expert * shape.experts * ITEM
        yield Part(f"mlp {layer}", block, size, flops, 0, read * ITEM, shape.experts > 1)
    # Logits of the last token of each sequence.
    yield Part("head", None, embedding * ITEM, 2 * work.batch * embedding)


_LEVELS = ((320, 128**2, 0), (640, 64**2, 2), (1280, 32**2, 10))
"""Channels, positions and transformer blocks of a level of the UNet."""
_TEXT, _TEXT_TOKENS, _TIME, _BATCH = 2048, 77, 1280, 2


def unet_parts() -> Iterator[Part]:
    """Yield the units of one denoising step of SDXL at 1024 x 1024, with guidance.

    Shapes are those of unet/config.json of stabilityai/stable-diffusion-xl-base-1.0 (Podell et al.,
    SDXL, 2023); biases, normalisations and activations are left out. A unit is a residual block, a
    transformer block, or a change of resolution.
    """
    embedding = 320 * _TIME + _TIME**2 + 2816 * _TIME + _TIME**2
    yield _conv("embeddings", None, embedding + 9 * 4 * 320, 9 * 4 * 320, 128**2)
    had = 320
    skips = [had]
    for level, (channels, positions, depth) in enumerate(_LEVELS):
        block = f"down_blocks.{level}"
        for turn in range(2):
            yield from _residual(f"{block}.{turn}", block, had, channels, positions, depth)
            had = channels
            skips.append(had)
        if level < 2:
            conv = 9 * had**2
            yield _conv(f"{block} downsampler", block, conv, conv, positions // 4)
            skips.append(had)
    channels, positions, depth = _LEVELS[-1]
    yield from _residual("mid_block.0", None, had, channels, positions, depth)
    yield from _residual("mid_block.1", None, had, channels, positions, 0)
    for level, (channels, positions, depth) in enumerate(_LEVELS[::-1]):
        block = f"up_blocks.{level}"
        for turn in range(3):
            wide = had + skips.pop()
            yield from _residual(f"{block}.{turn}", block, wide, channels, positions, depth)
            had = channels
        if level < 2:
            conv = 9 * had**2
            yield _conv(f"{block} upsampler", block, conv, conv, 4 * positions)
    yield _conv("head", None, 9 * 320 * 4, 9 * 320 * 4, 128**2)


def _conv(name: str, block: str | None, weights: int, per_position: int, positions: int) -> Part:
    return Part(name, block, weights * ITEM, 2 * _BATCH * positions * per_position)


def _residual(
    name: str, block: str | None, had: int, channels: int, positions: int, depth: int
) -> Iterator[Part]:
    """Yield a residual block and the transformer blocks after it."""
    per_position = 9 * had * channels + 9 * channels**2 + (had != channels) * had * channels
    weights = per_position + _TIME * channels
    yield _conv(f"{name} residual", block, weights, per_position, positions)
    texts = 2 * _TEXT * channels
    for turn in range(depth):
        # Projections into and out of the transformer are in its first and last block.
        ends = (turn == 0) + (turn == depth - 1)
        per_position = (4 + 2 + 12 + ends) * channels**2 + 2 * (positions + _TEXT_TOKENS) * channels
        flops = 2 * _BATCH * (positions * per_position + _TEXT_TOKENS * texts)
        size = ((4 + 2 + 12 + ends) * channels**2 + texts) * ITEM
        yield Part(f"{name} transformer {turn}", block, size, flops)


def chain_of(
    model: str, devices: tuple[tuple[str, float], ...], host: str, work_name: str
) -> OffloadChain:
    """Return a model on devices, given as (class, GB), of which a UNet has all."""
    if model == UNET:
        parts, usable, batch = list(unet_parts()), 1.0, _BATCH
        tokens, activations = _BATCH * 128**2, _BATCH * 64**2 * 640 * ITEM
    else:
        work, shape = WORKS[work_name], SHAPES[model]
        parts, usable, batch = list(decoder_parts(shape, work)), USABLE, work.batch
        tokens, activations = batch * work.tokens, batch * work.tokens * shape.hidden * ITEM
    classes = {name for name, _ in devices}
    operators, weights, caches = [], {}, {}
    for part in parts:
        read = part.weight_bytes if part.read_bytes is None else part.read_bytes
        times = {
            kind: SPECS[kind].latency_ns(int(part.flops), int(read), "bfloat16")
            for kind in (*classes, host)
        }
        keys = [part.name]
        weights[part.name] = Weight(part.weight_bytes)
        if part.cache_bytes:
            keys.append(f"cache of {part.name}")
            weights[keys[-1]] = Weight(part.cache_bytes)
            caches[keys[-1]] = part.cache_bytes // WORKS[work_name].context
        reads = (operators[-1].name,) if operators else ()
        operators.append(
            Operator(part.name, times, reads, value_bytes=activations, weights=tuple(keys))
        )
    places = [
        Device(f"cuda:{index}", int(size * GB * usable), kind)
        for index, (kind, size) in enumerate(devices)
    ]
    slowest = Link(min(LINKS.get(name, 25 * GB) for name, _ in devices), 10_000)
    links = {
        (STAGING_HOST, place.name): Link(LINKS.get(place.device_class, 25 * GB), 10_000)
        for place in places
    }
    problem = PartitionProblem(
        operators, places, weights=weights, interconnect=Interconnect(slowest, links),
        memory_model="weights",
    )  # fmt: skip
    job = Job(
        {"forward": problem}, "forward", objective="token", cache_bytes_per_token=caches,
        host=Host(None, host), units={op.name: (op.name,) for op in operators},
    )  # fmt: skip
    experts = frozenset(part.name for part in parts if part.is_experts)
    return OffloadChain(OffloadInstance.of(job), [part.block for part in parts], tokens, experts)
