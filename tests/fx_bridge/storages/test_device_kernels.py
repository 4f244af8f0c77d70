"""Composite operators are costed by the kernels of device classes, wherever the model is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from fx_bridge import (
    DEVICE_SPECS,
    CapturedGraph,
    Costs,
    DeviceSpec,
    Training,
    capture,
    memory_profile,
    to_digraph,
)
from fx_bridge.costs.backward import backward_costs, backward_passes
from fx_bridge.costs.latency import roofline_latency_ns
from fx_bridge.memory.profile import forward_workspaces
from fx_bridge.storages.attention import AttentionCall
from solver import Device, problem_from_digraph
from tests.support.modules import module_with

BATCH, HEADS, ROWS, WIDTH = 2, 4, 256, 32


class Attention(nn.Module):
    """Projections and attention; `settings` are those of the function."""

    def __init__(self, kv_heads: int = HEADS, dtype: Any = torch.bfloat16, **settings: Any) -> None:
        super().__init__()
        self.heads = HEADS, kv_heads, kv_heads
        sizes = [heads * WIDTH for heads in self.heads]
        self.inner = nn.ModuleList(nn.Linear(64, size, dtype=dtype) for size in sizes)
        self.settings = settings

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (heads, WIDTH)).transpose(1, 2)
            for layer, heads in zip(self.inner, self.heads, strict=True)
        )
        made = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.settings)
        return made.transpose(1, 2).flatten(2)


def captured_attention(
    device: str = "meta", *, mask: torch.Tensor | None = None, **settings: Any
) -> CapturedGraph:
    model = Attention(**settings).to(device)
    dtype = settings.get("dtype", torch.bfloat16)
    inputs = (torch.zeros(BATCH, ROWS, 64, dtype=dtype), mask)
    return capture(model, inputs if mask is not None else inputs[:1])


def residual_bytes(captured: CapturedGraph) -> int:
    """What is kept for the backward pass of the operators alone."""
    costs = backward_costs(captured)
    passes = backward_passes(captured, costs, {node.name: 2**40 for node in captured.operators})
    return sum(entry.residual_bytes for entry in passes.values())


def kernel(captured: CapturedGraph, *classes: str, training: bool = False) -> Any:
    """What the operator graph says of the one attention in `captured`."""
    specs = {name: DEVICE_SPECS[name] for name in classes}
    graph = to_digraph(
        captured, training=Training() if training else None, costs=Costs(specs=specs)
    )
    return graph.nodes["scaled_dot_product_attention"]["info"]["attention"]


SCORES = BATCH * HEADS * ROWS * ROWS
LOG_SUMS = 4 * BATCH * HEADS * ROWS
MASK = torch.ones(ROWS, ROWS, dtype=torch.bool)
GROUPED: dict[str, Any] = {"kv_heads": 2, "enable_gqa": True}


def test_attention_of_a_model_on_meta_keeps_no_scores() -> None:
    captured = captured_attention(is_causal=True)
    # The seed and the offset of random numbers are kept too.
    assert LOG_SUMS <= residual_bytes(captured) <= LOG_SUMS + 64
    assert residual_bytes(captured.with_kernels(attention="math")) > 2 * SCORES


def test_attention_of_a_model_on_meta_takes_two_and_a_half_times_as_long_backward() -> None:
    captured = captured_attention(is_causal=True)
    spec = DeviceSpec("busy", 10**9, 10**15, device_type="cuda")
    forward = roofline_latency_ns(captured, {"busy": spec})["scaled_dot_product_attention"]["busy"]
    backward = backward_costs(captured)["scaled_dot_product_attention"].latency_ns(spec)
    assert backward == pytest.approx(2.5 * forward, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference_with_a_mask_needs_room_for_the_mask_as_numbers_alone(dtype: Any) -> None:
    captured = captured_attention(mask=MASK, dtype=dtype)
    found = forward_workspaces(captured)["scaled_dot_product_attention"]
    mask_bytes = MASK.numel() * dtype.itemsize
    assert mask_bytes <= found <= mask_bytes + 64
    apart = forward_workspaces(captured.with_kernels(attention="math"))
    assert apart["scaled_dot_product_attention"] > SCORES


def test_backward_workspace_of_fused_attention_holds_the_float32_gradient_of_queries() -> None:
    captured = captured_attention()
    cost = backward_costs(captured)["scaled_dot_product_attention"]
    assert cost.workspace_bytes == 4 * BATCH * HEADS * ROWS * (WIDTH + 1)
    profile = memory_profile(captured, training=True, optimizer="sgd")
    assert sum(s.size_bytes for s in profile.alive_at_peak) == profile.peak_bytes
    grouped = backward_costs(captured_attention(kv_heads=1, enable_gqa=True))
    more = grouped["scaled_dot_product_attention"].workspace_bytes - cost.workspace_bytes
    assert more == BATCH * HEADS * ROWS * 2 * WIDTH * 2


@pytest.mark.parametrize(
    ("settings", "device_class", "expected"),
    [
        ({}, "a100-80gb", "flash"),
        ({"is_causal": True}, "h100-sxm", "flash"),
        ({"dropout_p": 0.1}, "a100-80gb", "flash"),
        ({"mask": MASK}, "a100-80gb", "efficient"),
        ({"dtype": torch.float32}, "a100-80gb", "efficient"),
        ({"dtype": torch.float64}, "a100-80gb", "math"),
        ({"dtype": torch.float64}, "cpu", "cpu"),
        (GROUPED, "a100-80gb", "flash"),
        (GROUPED | {"mask": MASK}, "a100-80gb", "math"),
        (GROUPED | {"mask": MASK}, "h100-sxm", "cudnn"),
        (GROUPED | {"mask": MASK}, "cpu", "cpu"),
        ({"dtype": torch.float16}, "t4", "efficient_sm70"),
        ({}, "v100", "math"),
        ({"mask": MASK}, "cpu", "cpu"),
        ({"dropout_p": 0.1}, "cpu", "math"),
        ({}, "default", "flash"),
    ],
)
def test_kernels_are_those_of_class_and_arguments(
    settings: dict[str, Any], device_class: str, expected: str
) -> None:
    assert kernel(captured_attention(**settings), device_class) == expected


def test_kernels_of_the_cpu_are_those_that_torch_chooses() -> None:
    draw = random.Random(0)
    chosen = set()
    for _ in range(400):
        heads, rows, columns = draw.choice([2, 4]), draw.choice([1, 8]), draw.choice([8, 16])
        kv_heads, width = draw.choice([heads, 2]), draw.choice([8, 20])
        dtype = draw.choice([torch.float32, torch.bfloat16, torch.float64])
        query = torch.empty(2, heads, rows, width, dtype=dtype)
        key = torch.empty(2, kv_heads, columns, width, dtype=dtype)
        value = torch.empty(2, kv_heads, columns, draw.choice([width, width, 24]), dtype=dtype)
        mask = None
        if draw.random() < 0.5:
            shape = draw.choice([(rows, columns), (2, 1, rows, columns), (1, columns), (2, 8, 8)])
            mask = torch.empty(shape, dtype=dtype, requires_grad=draw.random() < 0.2)
        call = AttentionCall(
            query, key, value, mask, draw.choice([0.0, 0.0, 0.1]), enable_gqa=draw.random() < 0.5
        )
        choice = torch._fused_sdp_choice(
            query, key, value, mask, call.dropout_p, False, enable_gqa=call.enable_gqa
        )
        assert call.kernel(("cpu",)) == ("cpu" if choice else "math"), call
        chosen.add(choice)
    assert chosen == {0, 1}


@pytest.mark.parametrize(
    "settings", [{}, {"is_causal": True}, {"mask": MASK}, {"dropout_p": 0.1}, GROUPED], ids=str
)
def test_a_model_on_meta_costs_on_a_cpu_what_it_does_there(settings: dict[str, Any]) -> None:
    on_meta, on_cpu = (
        captured_attention(device, dtype=torch.float32, **settings) for device in ("meta", "cpu")
    )
    as_on_cpu = on_meta.with_kernels("cpu")
    assert residual_bytes(as_on_cpu) == residual_bytes(on_cpu)
    assert forward_workspaces(as_on_cpu) == forward_workspaces(on_cpu)
    for training in (False, True):
        found, wanted = (memory_profile(c, training=training) for c in (as_on_cpu, on_cpu))
        assert found.points == wanted.points


def test_attention_inside_a_called_module_is_seen() -> None:
    attention = nn.MultiheadAttention(64, 2, batch_first=True, device="meta")
    model = module_with(
        lambda self, x: self.attention(x, x, x, need_weights=False)[0], attention=attention
    )
    captured = capture(fx.symbolic_trace(model), (torch.zeros(2, 128, 64, device="meta"),))
    graph = to_digraph(captured, training=Training(), costs=Costs(specs={"l4": DEVICE_SPECS["l4"]}))
    assert graph.nodes["attention"]["info"]["attention"] == "efficient"
    apart = to_digraph(captured.with_kernels(attention="math"), training=Training())
    kept, all_kept = (g.nodes["attention"]["backward"]["residual_bytes"] for g in (graph, apart))
    assert all_kept - kept > 2 * 2 * 128 * 128 * 4


def test_one_graph_has_times_and_memory_of_classes_that_run_other_kernels() -> None:
    captured = captured_attention(dropout_p=0.1)
    specs = {name: DEVICE_SPECS[name] for name in ("a100-80gb", "cpu")}
    graph = to_digraph(captured, training=Training(), costs=Costs(specs=specs))
    node = graph.nodes["scaled_dot_product_attention"]
    assert node["info"]["attention"] == {"a100-80gb": "flash", "cpu": "math"}
    assert graph.graph["info"]["attention"] == {"a100-80gb": {"flash": 1}, "cpu": {"math": 1}}
    alone = {
        name: to_digraph(captured, training=Training(), costs=Costs(specs={name: spec}))
        for name, spec in specs.items()
    }
    for classes in (("a100-80gb",), ("cpu",), ("a100-80gb", "cpu")):
        devices = [Device(name, device_class=name) for name in classes]
        mixed = problem_from_digraph(graph, devices, memory_model="training")
        apart = [
            problem_from_digraph(alone[name], [Device(name, device_class=name)]).operators
            for name in classes
        ]
        for operator, *own in zip(mixed.operators, *apart, strict=True):
            assert operator.workspace_bytes == max(o.workspace_bytes for o in own)
            for field in ("kept_bytes", "residual_bytes", "workspace_bytes"):
                most = max(getattr(o.backward, field) for o in own)
                assert getattr(operator.backward, field) == most
            for name, other in zip(classes, own, strict=True):
                assert operator.latency_ns[name] == other.latency_ns[name]  # type: ignore[index]


def applied(function: Callable[[torch.Tensor], torch.Tensor], dtype: Any) -> CapturedGraph:
    """The graph of a function of a value that has a gradient."""
    scale = nn.Parameter(torch.ones(()))
    model = module_with(lambda self, x: function(x * self.scale.to(x.dtype)), scale=scale)
    return capture(model, (torch.zeros(32, 64, dtype=dtype),))


def test_dropout_has_a_mask_of_a_byte_an_element_and_rms_norm_is_one_kernel_on_cuda() -> None:
    captured = applied(lambda x: functional.dropout(x, 0.1), torch.float32)
    assert residual_bytes(captured) == 4 * 32 * 64
    assert residual_bytes(captured.with_kernels("cuda")) == 32 * 64
    captured = applied(lambda x: functional.rms_norm(x, (64,)), torch.bfloat16)
    # A float32 copy of what it reads, and of that the product with the factor of each row.
    assert residual_bytes(captured) > 4 * 32 * 64
    assert residual_bytes(captured.with_kernels("cuda")) <= 2 * 4 * 32
    assert forward_workspaces(captured.with_kernels("cuda"), training=True) == {}


@pytest.mark.parametrize("function", [functional.softmax, functional.log_softmax])
def test_a_float32_softmax_of_float16_reads_it_as_it_is_on_cuda(function: Any) -> None:
    def found(dtype: Any) -> list[int]:
        made = applied(lambda x: function(x, -1, dtype=torch.float32), dtype)
        return [sum(forward_workspaces(c).values()) for c in (made, made.with_kernels("cuda"))]

    assert found(torch.float16) == [4 * 32 * 64, 0]
    # Torch does so for float16 alone.
    assert found(torch.bfloat16) == [4 * 32 * 64] * 2


def test_a_head_of_more_than_256_numbers_is_not_for_flash_attention() -> None:
    query = torch.empty(1, 2, 8, 320, dtype=torch.bfloat16, device="meta")
    call = AttentionCall(query, query, query)
    assert call.kernel(("flash",)) == "math"
    assert call.kernel(("flash", "efficient")) == "efficient"
