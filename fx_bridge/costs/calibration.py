"""Rates of this machine's device, fitted to measured operators of common shapes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from fx_bridge.capture.graph import capture
from fx_bridge.costs.device_specs import DeviceSpec
from fx_bridge.costs.operators import dtype_name, node_flops, node_moved_bytes
from fx_bridge.costs.timing import measure_operators
from fx_bridge.storages.attention import ATTENTION

_LINEAR: Final = (
    (1, 768, 768), (1, 2048, 2048), (8, 1024, 1024), (16, 3072, 768), (64, 256, 256),
    (64, 768, 3072), (128, 384, 1536), (128, 768, 768), (128, 1536, 384), (256, 512, 512),
    (256, 1024, 1024), (512, 768, 768),
)  # fmt: skip
"""Rows, and the inputs and outputs of a layer."""
_ATTENTION: Final = ((1, 8, 64, 64), (2, 6, 64, 64), (1, 12, 128, 64), (1, 8, 256, 64))
"""Batch, heads, tokens, and entries of a head."""
_ELEMENTS: Final = (64, 2**14, 2**16, 2**18, 2**20, 2**22)
_STEPS, _ROUNDS, _REPEATS = 21, 10, 15


class Shapes(nn.Module):
    """Runs linear layers, attention, sums, activations and copies of common shapes, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs) for _, inputs, outputs in _LINEAR)

    @staticmethod
    def inputs() -> tuple[Any, ...]:
        """Return the inputs of `forward`."""
        return (
            [torch.randn(rows, inputs) for rows, inputs, _ in _LINEAR],
            [torch.randn(shape) for shape in _ATTENTION],
            [torch.randn(count) for count in _ELEMENTS],
        )

    def forward(
        self, rows: list[torch.Tensor], heads: list[torch.Tensor], flat: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return all results."""
        found = [layer(row) for layer, row in zip(self.layers, rows, strict=True)]
        found += [functional.scaled_dot_product_attention(x, x, x) for x in heads]
        for x in flat:
            found += [x + x, functional.gelu(x), x.clone()]
        return found


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured operator: its work, and its time."""

    flops: int
    moved_bytes: int
    is_attention: bool
    ns: int


def measure_samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Measure every operator of :class:`Shapes` on `device`.

    An accelerator gets each operator several times without waiting, as a model gives it work.
    """
    with torch.device(device):
        model, inputs = Shapes().to(dtype), Shapes.inputs()
    inputs = tuple([tensor.to(dtype) for tensor in tensors] for tensors in inputs)
    captured = capture(model.eval(), inputs)
    if torch.device(device).type == "cpu":
        times_ns: Mapping[str, int] = measure_operators(captured, repeats=_REPEATS).forward_ns
    else:
        queued = _Queued(captured.module)
        with torch.no_grad():
            queued.run(*pytree.tree_leaves(inputs))
        times_ns = queued.times_ns
    flops, moved = node_flops(captured), node_moved_bytes(captured, captured.storage_table, "most")
    return [
        Sample(flops[node.name], moved[node.name], node.target in ATTENTION, times_ns[node.name])
        for node in captured.operators
        if moved[node.name]
    ]


class _Queued(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.times_ns: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        torch.accelerator.synchronize()
        start_ns = time.perf_counter_ns()
        for _ in range(_REPEATS):
            super().run_node(n)
        torch.accelerator.synchronize()
        self.times_ns[n.name] = (time.perf_counter_ns() - start_ns) // _REPEATS
        return value


def fitted(
    name: str, samples: Sequence[Sample], device_type: str, dtype: str, source: str
) -> DeviceSpec:
    """Return the rates and launches with the least relative errors.

    `samples` are those of one dtype on one device, from a `source` for people to read.

    The sum of the absolute logarithms of predicted over measured times is minimised on grids of
    factors around the best point so far, each finer than the one before. Attention has a rate and
    a launch of its own. An accelerator's least time of an operator is that of its host to issue
    one; rates are fitted to operators of more than twice that.
    """
    host_ns = 0
    if device_type != "cpu":
        host_ns = min(sample.ns for sample in samples)
        samples = [sample for sample in samples if sample.ns > 2 * host_ns] or samples
    fused = [sample for sample in samples if sample.is_attention]
    plain = [sample for sample in samples if not sample.is_attention]
    launch_ns, flops_per_s, bytes_per_s = _fit(plain, (1e4, 1e11, 1e10))
    attention_ns, attention_per_s = launch_ns, flops_per_s
    if fused:
        attention_ns, attention_per_s, _ = _fit(fused, (launch_ns, flops_per_s, bytes_per_s))
    peak = max(flops_per_s, attention_per_s)
    return DeviceSpec(
        name,
        {dtype: round(peak)},
        round(bytes_per_s),
        host_ns,
        device_type,
        backward_overhead_ns=2 * host_ns,
        kernel_launch_ns=round(launch_ns),
        attention_launch_ns=round(attention_ns),
        compute_efficiency=round(flops_per_s / peak, 3),
        attention_efficiency=round(attention_per_s / peak, 3),
        source=source,
    )


def _fit(samples: Sequence[Sample], start: tuple[float, ...]) -> tuple[float, ...]:
    """Return nanoseconds of a launch, and operations and bytes a second."""
    flops, moved, ns = (
        np.array([getattr(sample, key) for sample in samples], dtype=np.float64)
        for key in ("flops", "moved_bytes", "ns")
    )

    def error(point: tuple[float, ...]) -> float:
        launch_ns, flops_per_s, bytes_per_s = point
        times: NDArray[np.float64] = launch_ns + 1e9 * np.maximum(
            flops / flops_per_s, moved / bytes_per_s
        )
        return float(np.abs(np.log(times / ns)).sum())

    best, spread = start, 1000.0
    for _ in range(_ROUNDS):
        factors = np.geomspace(1 / spread, spread, _STEPS)
        grid = itertools.product(*([value * f for f in factors] for value in best))
        best = min(grid, key=error)
        spread **= 0.6
    return best


def calibrate(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> DeviceSpec:
    """Return the rates of a device of this machine for operators in `dtype`, issued by Python.

    `name` is that of its class; `device` is as torch calls it, such as ``"cpu"`` or ``"cuda:0"``.
    """
    samples = measure_samples(device, dtype)
    source = f"{len(samples)} operators measured on this machine"
    return fitted(name, samples, torch.device(device).type, dtype_name(dtype), source)
