"""How far offload plans are from their bounds, and what the rules of others take.

    python benchmarks/bench_offload.py [--only TEXT] [--time-limit S] [--json FILE]

Times are rooflines of data sheets over published shapes; nothing is measured. A unit is half a
layer, attention with its cache or the MLP, or a block of a UNet.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from offload_cases import DENOISE, UNET, chain_of

from experiments.planners.offload_rules import OFFLOAD_RULES, costs_of_rule
from solver import PartitionError, SolveLimits
from solver.offload.plan import plan_offload
from solver.offload.units import UNIT_MODES

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
    (UNET, (("rtx-3060", 4),), "desktop", DENOISE),
    (UNET, (("rtx-4090", 4),), "desktop", DENOISE),
    (UNET, (("rtx-4090", 3),), "desktop", DENOISE),
]


def times_of_rules(chain, value_ns, is_decoder):
    """Return how many times as long each rule takes; None where it has no plan that fits."""
    found = dict.fromkeys(rule.name for rule in OFFLOAD_RULES)
    for rule in OFFLOAD_RULES:
        if is_decoder or "llama.cpp" not in rule.name:
            with contextlib.suppress(PartitionError):
                ((_, cost),) = costs_of_rule(rule, [chain])
                found[rule.name] = float(cost.value_ns / value_ns)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose text contains this")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    columns = ["model, devices, host", "work", "ms", "bound", "gap", "resident/streamed/host"]
    columns += ["seconds", *(rule.name for rule in OFFLOAD_RULES)]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    rows = []
    for model, devices, host, work in ROWS:
        title = f"{model}, {'+'.join(f'{size} GB {name}' for name, size in devices)}, {host}"
        if options.only not in f"{title} {work}":
            continue
        chain = chain_of(model, devices, host, work)
        start = time.perf_counter()
        limits = SolveLimits(options.time_limit, workers=1, seed=options.seed)
        result = plan_offload(chain.instance, limits)
        seconds = time.perf_counter() - start
        modes = Counter(mode for _, mode in chain.instance.units_of(result.plan).values())
        times = times_of_rules(chain, result.objective, model != UNET)
        row = {
            "case": title, "work": work, "value_ms": float(result.objective / 10**6),
            "bound_ms": float(result.objective_bound / 10**6), "gap": result.gap,
            "modes": dict(modes), "times": times, "seconds": seconds,
        }  # fmt: skip
        rows.append(row)
        cells = [title, work, f"{row['value_ms']:.1f}", f"{row['bound_ms']:.1f}"]
        cells += [f"{100 * row['gap']:.2f} %", "/".join(str(modes[mode]) for mode in UNIT_MODES)]
        cells += [f"{seconds:.1f}"]
        cells += ["-" if one is None else f"{one:.2f}" for one in times.values()]
        print(f"| {' | '.join(cells)} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
