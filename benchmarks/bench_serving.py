"""Most tokens that fit, of published models on unequal devices, by the plan of ``serve``.

Beside the plan stand the tokens that fit what engines would do by their own rules, or ``-`` where
their plan does not fit, with the layers of every device in the order of the devices. Nine in ten
bytes of a device may hold weights and caches. Run it as::

    python benchmarks/bench_serving.py [--rows TEXT] [--operators] [--time-limit SECONDS]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, Final

import torch
import transformers

from experiments.planners.served import ServedPlan
from experiments.planners.serving_rules import SERVING_RULES, served_by_rules
from experiments.problems.devices import parse_devices
from fx_bridge.options import Costs, Search
from fx_bridge.serving import Request, ServingPlan, plan_serving
from solver import Device, SolveLimits

_SHAPES: Final = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
_HEADS: Final = ("num_attention_heads", "num_key_value_heads")
_MODELS: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "Llama-3-8B": ("Llama", (128256, 4096, 14336, 32, 32, 8)),
    "Qwen3-14B": ("Qwen3", (151936, 5120, 17408, 40, 40, 8)),
    "Llama-2-13B": ("Llama", (32000, 5120, 13824, 40, 40, 40)),
    "Qwen3-32B": ("Qwen3", (151936, 5120, 25600, 64, 64, 8)),
    "Mixtral-8x7B": ("Mixtral", (32000, 4096, 14336, 32, 32, 8)),
    "Llama-3-70B": ("Llama", (128256, 8192, 28672, 80, 64, 8)),
    "Llama-3-405B": ("Llama", (128256, 16384, 53248, 126, 128, 8)),
}
ROWS: Final = (
    ("Llama-3-8B", "24GB,12GB"),
    ("Qwen3-14B", "24GB,2x12GB"),
    ("Llama-2-13B", "2x24GB,12GB"),
    ("Qwen3-32B", "80GB,24GB"),
    ("Qwen3-32B", "40GB,2x24GB"),
    ("Mixtral-8x7B", "80GB,2x24GB"),
    ("Llama-3-70B", "2x80GB,24GB"),
    ("Llama-3-70B", "80GB,4x24GB"),
    ("Llama-3-405B", "8x80GB,8x48GB"),
)
_USABLE: Final = 0.9


def model_of(name: str) -> torch.nn.Module:
    """Return a model on the meta device, in bfloat16."""
    family, sizes = _MODELS[name]
    settings: dict[str, Any] = dict(zip((*_SHAPES, *_HEADS), sizes, strict=True))
    if family == "Qwen3":
        settings["head_dim"] = 128
    config = getattr(transformers, f"{family}Config")(**settings)
    with torch.device("meta"):
        model: torch.nn.Module = getattr(transformers, f"{family}ForCausalLM")(config)
    return model.to(torch.bfloat16).eval()


def usable(devices: str) -> list[Device]:
    """Return devices of which a tenth of the memory is left for all but weights and caches."""
    return [
        Device(d.name, int((d.memory_bytes or 0) * _USABLE), d.device_class)
        for d in parse_devices(devices).devices
    ]


def planned(
    model: torch.nn.Module, devices: str, limits: SolveLimits, *, whole_layers: bool = True
) -> ServingPlan:
    """Plan for most tokens."""
    return plan_serving(
        model,
        Request(),
        devices=usable(devices),
        objective="context",
        whole_layers=whole_layers,
        costs=Costs(memory_model="weights"),
        search=Search(limits),
    )


def main() -> None:
    """Print a row for each model and its devices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="only models whose name has this text")
    parser.add_argument("--operators", action="store_true", help="divide layers")
    parser.add_argument("--time-limit", type=float, default=60.0)
    asked = parser.parse_args()
    columns = ("model", "devices", "tokens", "bound", "layers", "planned in s", "captured in s")
    columns += tuple(rule.name for rule in SERVING_RULES)
    print(_row(columns))
    print(_row(["---"] * len(columns)), flush=True)
    for name, devices in ROWS:
        if asked.rows not in name:
            continue
        start_s = time.perf_counter()
        model = model_of(name)
        limits = SolveLimits(asked.time_limit)
        found = planned(model, devices, limits, whole_layers=not asked.operators)
        solved = found.solved
        rest_s = time.perf_counter() - start_s - solved.wall_time_s
        ours, rules = served_by_rules(found, model)
        values = (solved.objective, solved.objective_bound)
        cells = [name, devices, *(f"{value or 0:.0f}" for value in values)]
        cells.append("-" if ours is None else _layers(ours))
        cells += [f"{solved.wall_time_s:.1f}", f"{rest_s:.1f}"]
        cells += [f"{rule.tokens or '-'} ({_layers(rule)})" for rule in rules]
        print(_row(cells), flush=True)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _layers(served: ServedPlan) -> str:
    return ",".join(map(str, served.layers.values())) or served.reason


if __name__ == "__main__":
    main()
