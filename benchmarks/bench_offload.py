"""How far offload plans are from their bounds, and what the rules of others take.

    python benchmarks/bench_offload.py [--only TEXT] [--time-limit S] [--json FILE]

Times are rooflines of data sheets over published shapes; nothing is measured. A unit is half a
layer: attention with its cache, or the MLP.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fx_bridge.costs.device_specs import DEVICE_SPECS, DeviceSpec
from solver import Device, Link, SolveLimits
from solver.offload.evaluate import evaluate_offload
from solver.offload.model import OffloadDevice, OffloadHost, OffloadProblem, Unit
from solver.offload.plan import plan_offload

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

SPECS = {
    # NVIDIA's page of the card; tensor rate with float32 accumulation.
    "rtx-3060": DeviceSpec("rtx-3060", {"bfloat16": 25_300 * GB}, 360 * GB, 5_000),
    **DEVICE_SPECS,
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

ROWS = [
    ("Llama-3-8B", (("rtx-3060", 8),), "desktop", "decode B 1"),
    ("Llama-3-8B", (("rtx-3060", 8),), "desktop", "prefill 4k"),
    ("Llama-3-8B", (("rtx-3060", 12),), "desktop", "decode B 1"),
    ("Qwen3-32B", (("rtx-4090", 24),), "desktop", "decode B 1"),
    ("Qwen3-32B", (("rtx-4090", 24),), "desktop", "decode B 32"),
    ("Qwen3-32B", (("rtx-4090", 24),), "desktop", "prefill 4k"),
    ("Llama-3-70B", (("rtx-4090", 24),), "desktop", "decode B 1"),
    ("Llama-3-70B", (("rtx-4090", 24),), "desktop", "prefill 4k"),
    ("Llama-3-70B", (("rtx-4090", 24), ("rtx-3060", 12)), "desktop", "decode B 1"),
    ("Llama-3-70B", (("a100-80gb", 80),), "server", "decode B 1"),
    ("Llama-3-70B", (("a100-80gb", 80),), "server", "prefill 4k"),
    ("Mixtral-8x7B", (("rtx-4090", 24),), "desktop", "decode B 1"),
    ("Mixtral-8x7B", (("rtx-4090", 24),), "desktop", "decode B 32"),
    ("Mixtral-8x7B", (("rtx-4090", 24),), "desktop", "prefill 4k"),
    ("Mixtral-8x7B", (("rtx-4090", 24), ("rtx-3060", 12)), "desktop", "decode B 1"),
    ("Mixtral-8x7B", (("rtx-4090", 24), ("rtx-3060", 12)), "desktop", "prefill 4k"),
    ("Mixtral-8x7B", (("a10", 24),), "server", "decode B 1"),
]


def parts_of(shape, work):
    """Yield (name, weight bytes, cache bytes, bytes read, FLOPs) of each unit."""
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
    yield "embedding", embedding * ITEM, 0, tokens * hidden * ITEM, 0
    for layer in range(shape.layers):
        flops = 2 * tokens * attention + 4 * tokens * attended * queries
        yield f"attention {layer}", attention * ITEM, cache, attention * ITEM + cache, flops
        flops = 2 * tokens * expert * shape.chosen
        yield f"mlp {layer}", expert * shape.experts * ITEM, 0, read * ITEM, flops
    # Logits of the last token of each sequence.
    yield "head", embedding * ITEM, 0, embedding * ITEM, 2 * work.batch * embedding


def problem_of(model, devices, host, work_name):
    work = WORKS[work_name]
    shape = SHAPES[model]
    classes = {name for name, _ in devices}
    units = []
    for name, weight, cache, read, flops in parts_of(shape, work):
        times = {
            kind: SPECS[kind].latency_ns(int(flops), int(read), "bfloat16")
            for kind in (*classes, host)
        }
        units.append(Unit(name, weight, cache, {k: times[k] for k in classes}, times[host]))
    activations = work.batch * work.tokens * shape.hidden * ITEM
    hop = Link(min(LINKS.get(name, 25 * GB) for name, _ in devices), 10_000)
    return OffloadProblem(
        units,
        [
            OffloadDevice(
                Device(f"cuda:{index}", int(size * GB * USABLE), kind),
                Link(LINKS.get(kind, 25 * GB), 10_000),
            )
            for index, (kind, size) in enumerate(devices)
        ],
        OffloadHost(None),
        stage_hop_ns=hop.transfer_ns(activations),
        host_hop_ns=hop.transfer_ns(activations),
    )


def greedy(problem, order, other, largest=0):
    """Make units resident in an order, device by device, until one fits nowhere.

    The others are `other` on the last device tried, which keeps room for their caches and for a
    load of `largest` bytes.
    """
    order = list(order)
    names = list(range(len(problem.devices)))
    if order[0]:
        names.reverse()
    units = problem.units
    devices = [names[-1]] * len(units)
    modes = [other] * len(units)
    turn = held = 0
    waiting = sum(unit.cache_bytes for unit in units) if other == "streamed" else 0
    for index in order:
        unit = units[index]
        waiting -= unit.cache_bytes if other == "streamed" else 0
        while turn < len(names):
            reserved = (largest + waiting) if turn == len(names) - 1 else 0
            room = problem.devices[names[turn]].device.memory_bytes - reserved
            if held + unit.held_bytes <= room:
                held += unit.held_bytes
                devices[index], modes[index] = names[turn], "resident"
                break
            turn, held = turn + 1, 0
        if turn == len(names):
            break
    return problem.plan(tuple(devices), tuple(modes))


def value_of(problem, plan, **settings):
    """The objective of a plan of a rule, which fits by construction."""
    found = evaluate_offload(problem, plan, **settings)
    assert found.feasible, found.violations
    return found.value_ns


def rules(problem, tokens):
    """Yield (name, value) of what others do; None where a rule does not apply."""
    largest = max(unit.weight_bytes for unit in problem.units)
    every = range(len(problem.units))
    # What accelerate streams runs on its main device, the first; here that comes last, so that
    # stages stay in order.
    turned = dataclasses.replace(problem, devices=problem.devices[::-1])
    plan = greedy(turned, every, "streamed", largest)
    yield "accelerate", value_of(turned, plan, prefetch="none")
    yield "-ngl", value_of(problem, greedy(problem, every[::-1], "host"))
    # llama.cpp copies matrices of the host to the device for batches of at least 32 tokens.
    if tokens < 32:
        yield "op offload", None
    else:
        plan = greedy(problem, every[::-1], "streamed", largest)
        yield "op offload", value_of(problem, plan, prefetch="none")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose text contains this")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(
        "| model, devices, host | work | ms | bound | gap | resident/streamed/host"
        " | accelerate | -ngl | op offload | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for model, devices, host, work in ROWS:
        title = f"{model}, {'+'.join(f'{size} GB {name}' for name, size in devices)}, {host}"
        if options.only not in f"{title} {work}":
            continue
        problem = problem_of(model, devices, host, work)
        start = time.perf_counter()
        limits = SolveLimits(options.time_limit, workers=1, seed=options.seed)
        result = plan_offload(problem, limits)
        seconds = time.perf_counter() - start
        modes = Counter(result.plan.mode_of.values())
        value = result.value_ns
        tokens = WORKS[work].batch * WORKS[work].tokens
        times = {
            name: None if found is None else float(found / value)
            for name, found in rules(problem, tokens)
        }
        row = {
            "case": title, "work": work, "value_ms": float(value / 10**6),
            "bound_ms": result.bound_ns / 10**6, "gap": result.gap,
            "modes": dict(modes), "times": times, "seconds": seconds,
        }  # fmt: skip
        rows.append(row)
        counts = "/".join(str(modes[mode]) for mode in ("resident", "streamed", "host"))
        others = " | ".join("-" if one is None else f"{one:.2f}" for one in times.values())
        print(
            f"| {title} | {work} | {row['value_ms']:.1f} | {row['bound_ms']:.1f} |"
            f" {100 * row['gap']:.2f} % | {counts} | {others} |"
            f" {seconds:.1f} |",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
