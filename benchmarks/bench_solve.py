"""Solve time by model, number of devices, and solver; kept apart from the tests.

    python -m pytest benchmarks --benchmark-only --benchmark-columns=min,rounds

Every entry solves the whole problem once, so the time covers bounds, model and search; status
and gap stand in the extra information (``--benchmark-json=FILE``). Compare ratios within one run.
"""

from __future__ import annotations

from functools import cache

import networkx as nx
import pytest

from experiments.zoo.building import build_model
from experiments.zoo.models import resolve_model
from fx_bridge import capture, to_digraph
from solver import PCIE, Device, SolveLimits, problem_from_digraph, solve

MODELS = ("branches", "gpt2", "bert-base", "t5-base", "resnet-50", "vit-b16", "llama3-70b")
DEVICE_COUNTS = (2, 4, 8)
SLACK = 1.5
"""Capacity over all devices per byte of weights: room for activations of the small models too."""
TIME_LIMIT_S = 30.0


@cache
def operator_graph(name: str) -> nx.DiGraph:
    if name not in ("branches",):
        pytest.importorskip("transformers")
    model = build_model(resolve_model(name))
    return to_digraph(capture(model.module, model.args, model.kwargs))


def problem(name: str, device_count: int, *, equal: bool):
    graph = operator_graph(name)
    weights_bytes = sum(entry["size_bytes"] for entry in graph.graph["weights"].values())
    shares = [1] * device_count if equal else range(device_count, 0, -1)
    devices = [
        Device(f"d{index}", int(SLACK * weights_bytes * share / sum(shares)))
        for index, share in enumerate(shares)
    ]
    return problem_from_digraph(graph, devices, interconnect=PCIE)


@pytest.mark.parametrize("solver", ["greedy", "chain", "cp-sat"])
@pytest.mark.parametrize("equal", [True, False], ids=["equal", "unequal"])
@pytest.mark.parametrize("device_count", DEVICE_COUNTS)
@pytest.mark.parametrize("name", MODELS)
def bench_solve(benchmark, name, device_count, equal, solver):
    instance = problem(name, device_count, equal=equal)
    limits = SolveLimits(time_limit_s=TIME_LIMIT_S)
    result = benchmark.pedantic(
        solve, args=(instance, limits), kwargs={"solver": solver}, rounds=1, iterations=1
    )
    benchmark.extra_info.update(
        operators=len(instance.operators),
        status=result.status.value,
        objective=result.objective,
        gap=result.gap,
    )
