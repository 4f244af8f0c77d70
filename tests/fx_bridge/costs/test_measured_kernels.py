"""Presets beside kernels that were measured on five GPU systems, and steps on one of them."""

import csv
import itertools
import math
import statistics
from pathlib import Path

import pytest

from fx_bridge import Costs, Training, capture, to_digraph
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.costs.device_specs import EAGER_NS
from solver import Device, Interconnect, SolveStatus, evaluate, solve
from tests.support.graphs import chain

DATA = Path(__file__).parents[2] / "data" / "kernels"
CACHE_MB = {"a100-80gb": 40, "b200": 126, "h100-sxm": 50, "h200-sxm": 50, "l40s": 96}


def work(row):
    """Return the operations and the bytes of a measured kernel, and whether it is attention."""
    if row["kind"] == "linear":
        m, n, k = (int(row[name]) for name in ("m", "n", "k"))
        return 2 * m * n * k, 2 * (m * n + n * k + m * k), False
    names = ("batch", "tokens", "heads", "kv_heads", "head_dim")
    batch, tokens, heads, kv_heads, head_dim = (int(row[name]) for name in names)
    # Half of the scores are masked.
    flops = 4 * batch * heads * tokens**2 * head_dim // 2
    return flops, 2 * batch * tokens * head_dim * 2 * (heads + kv_heads), True


def measured(name):
    with (DATA / f"{name}.csv").open() as file:
        return [(*work(row), int(row["ns"])) for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("name", "most"),
    [("h100-sxm", 0.12), ("h200-sxm", 0.12), ("a100-80gb", 0.12), ("b200", 0.12), ("l40s", 0.2)],
)
def test_fitted_constants_agree_with_measured_kernels(name, most):
    rows = measured(name)
    # The tables are of kernels in CUDA graphs.
    spec = DEVICE_SPECS[name].launched("graph")
    times = [(spec.latency_ns(*work[:2], "bfloat16", work[2]), ns) for *work, ns in rows]
    assert len(rows) == 300
    assert statistics.median(abs(predicted / ns - 1) for predicted, ns in times) <= most
    bias = sum(predicted for predicted, _ in times) / sum(ns for _, ns in times)
    assert abs(bias - 1) <= 0.08


@pytest.mark.parametrize("name", CACHE_MB)
def test_no_measured_kernel_is_faster_than_the_data_sheet(name):
    spec = DEVICE_SPECS[name]
    for flops, moved_bytes, _, ns in measured(name):
        assert ns >= 0.95e9 * flops / spec.flops_per_s_of("bfloat16")
        if moved_bytes > 3e6 * CACHE_MB[name]:
            assert ns >= 0.95e9 * moved_bytes / spec.memory_bandwidth_bytes_per_s


FLEETS = {
    "4 H100, 4 A100": ["h100-sxm"] * 4 + ["a100-80gb"] * 4,
    "2 H200, 2 L40S": ["h200-sxm"] * 2 + ["l40s"] * 2,
    "2 A100, 2 L40S": ["a100-80gb"] * 2 + ["l40s"] * 2,
    "one of each": ["h100-sxm", "a100-80gb", "l40s", "b200"],
}
# Sequences and tokens of a call of each; all have a context of 4,096 positions.
CASES = {"prefill": (1, 4096), "decode1": (1, 1), "decode32": (32, 1)}


def layer_work(case):
    """Return shapes and the work of the products of a layer of Llama-3-8B, of attention and others.

    Attention and others are (operations, bytes).
    """
    batch, tokens = CASES[case]
    rows = batch * tokens
    linear = [(rows, 6144, 4096), (rows, 4096, 4096), (rows, 28672, 4096), (rows, 4096, 14336)]
    moved = 2 * 128 * batch * (2 * tokens * 32 + 2 * 4096 * 8)
    seen = 4096 / 2 if tokens > 1 else 4096
    attention = round(4 * batch * tokens * 32 * 128 * seen), moved
    sizes = [2 * rows * 4096 * 3] * 4 + [2 * rows * 14336 * 3] + [4 * rows * 4096] * 2
    others = [(0, size) for size in sizes]
    return linear, attention, others


def layer_ns(name, case):
    """Return the time of a layer by the preset, and by measured kernels of nearly its shapes."""
    spec = DEVICE_SPECS[name].launched("graph")
    linear, attention, others = layer_work(case)
    works = [(2 * m * n * k, 2 * (m * n + n * k + m * k)) for m, n, k in linear]
    linear_ns = sum(spec.latency_ns(*work, "bfloat16") for work in works)
    others_ns = sum(spec.latency_ns(*work, "bfloat16") for work in others)
    preset_ns = linear_ns + spec.latency_ns(*attention, "bfloat16", True) + others_ns
    with (DATA / "layers.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["system"], row["case"]) == (name, case)]
    measured_ns = others_ns
    for row, shape in zip(rows, [*linear, None], strict=True):
        sizes = [int(row[size]) for size in "mnk"] if shape else []
        measured_ns += int(row["ns"]) * math.prod(shape or ()) // math.prod(sizes)
    return preset_ns, measured_ns


def stages(names, times_ns):
    """Return the problem of 32 whole layers on devices of these classes, for the slowest stage."""
    devices = [Device(f"d{i}", device_class=name) for i, name in enumerate(names)]
    settings = {"interconnect": Interconnect(), "objective": "bottleneck"}
    return chain(32, latency_ns=[times_ns] * 32, value_bytes=1, devices=devices, **settings)


def test_plans_by_presets_lose_little_on_fleets_of_measured_devices():
    losses = []
    for names, case in itertools.product(FLEETS.values(), CASES):
        presets, truth = (
            stages(names, {name: layer_ns(name, case)[source] for name in names})
            for source in (0, 1)
        )
        planned, best = solve(presets), solve(truth)
        assert planned.status == best.status == SolveStatus.OPTIMAL
        found_ns = evaluate(truth, planned.plan).bottleneck_ns
        losses.append(found_ns / best.evaluation.bottleneck_ns - 1)
    assert min(losses) >= 0
    assert statistics.median(losses) <= 0.01
    assert max(losses) <= 0.08


def test_eager_kernels_take_the_time_of_the_host_and_of_backward_passes_twice():
    spec = DEVICE_SPECS["h100-sxm"]
    assert spec.latency_ns(1, 1, "bfloat16") == EAGER_NS
    assert spec.latency_ns(1, 1, "bfloat16", is_backward=True) == 2 * EAGER_NS
    assert spec.launched("graph").latency_ns(1, 1, "bfloat16") == 3_001
    assert spec.launched(77_000).latency_ns(1, 1, "bfloat16", is_backward=True) == 77_000


def test_an_engine_issues_kernels_alike_on_a_card_and_a_host():
    card, host = (DEVICE_SPECS[name].launched("engine") for name in ("rtx-3090", "ddr5-5600"))
    for spec in (card, host):
        assert spec.latency_ns(1, 1, "float32") == 1_001
        assert spec.latency_ns(1, 1, "float32", True, is_backward=True) == 1_001
    # A card is faster by its memory.
    assert card.latency_ns(0, 10**9, "float32") < host.latency_ns(0, 10**9, "float32") / 8


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "measured_ms", "most"), [("llama3-8b-4", 73.6, 0.12), ("gpt2-medium", 49.2, 0.2)]
)
def test_training_steps_of_an_h200_are_predicted(monkeypatch, name, measured_ms, most):
    """Steps that were measured with torch 2.11 (docs/prediction.md)."""
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    import recomputed_models

    own = {"llama3-8b-4": recomputed_models.llama(4096, 14336, 4, 32)}
    models = recomputed_models.MODELS | own
    model, tokens = recomputed_models.trained(*models[name], "meta")
    graph = to_digraph(
        capture(model, (tokens,)),
        training=Training(optimizer="sgd", master_weights=False),
        costs=Costs(specs={"h200-sxm": DEVICE_SPECS["h200-sxm"]}),
    )
    total_ns = 0
    for _, costs in graph.nodes(data=True):
        passes = (costs, costs.get("backward", {}))
        total_ns += sum(own["latency_ns"]["h200-sxm"] for own in passes if own.get("latency_ns"))
    assert total_ns / 1e6 == pytest.approx(measured_ms, rel=most)
