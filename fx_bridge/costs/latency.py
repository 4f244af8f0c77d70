"""Times of operators: by the roofline of a device's data sheet, or measured on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.choices import ExpertsRead
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.costs.device_specs import DeviceSpec, check_specs
from fx_bridge.costs.kernels import math_attention_kernels
from fx_bridge.costs.operators import compute_dtype, node_flops, node_moved_bytes
from fx_bridge.costs.timing import measure_operators
from fx_bridge.storages.attention import ATTENTION
from fx_bridge.storages.tensor_subclasses import tensors_in


def roofline_latency_ns(
    captured: CapturedGraph,
    specs: Mapping[str, DeviceSpec] = DEVICE_SPECS,
    *,
    flops: Mapping[str, int] | None = None,
    experts_read: ExpertsRead = "most",
) -> dict[str, dict[str, int]]:
    """Estimate the nanoseconds of every operator by device class; views and ``getitem`` take 0.

    The time is the larger of arithmetic and moving bytes. `flops` are those of the same graph, if
    counted already; `experts_read` is as of :func:`fx_bridge.costs.operators.node_moved_bytes`.
    """
    check_specs(specs)
    flops = node_flops(captured) if flops is None else flops
    table = captured.storage_table
    moved = node_moved_bytes(captured, table, experts_read)
    latency: dict[str, dict[str, int]] = {}
    known: dict[tuple[int, int, str, bool], dict[str, int]] = {}
    for node in captured.operators:
        work = (flops[node.name], moved[node.name], _compute_dtype(node), node.target in ATTENTION)
        if work not in known:
            known[work] = {name: spec.latency_ns(*work) for name, spec in specs.items()}
        latency[node.name] = dict(known[work])
    for operator, kernels in math_attention_kernels(captured).items():
        latency[operator] = {
            name: sum(spec.latency_ns(k.flops, k.moved_bytes, k.dtype) for k in kernels)
            for name, spec in specs.items()
        }
    return latency


def measured_latency_ns(
    captured: CapturedGraph,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    repeats: int = 5,
    training: bool = False,
) -> dict[str, int]:
    """Measure the time of every operator on this machine.

    Parameters
    ----------
    captured : CapturedGraph
        With its weights in memory. They, and the random state, are restored.
    args, kwargs : optional
        Inputs; default to the example inputs of the capture.
    repeats : int
        Runs after a warm-up.
    training : bool
        Measure the backward pass too, and add its time.

    Returns
    -------
    dict of str to int
        Nanoseconds by operator name, which add up to the time of the whole graph.
        :func:`fx_bridge.costs.timing.measure_operators` has forward and backward separately.

    Raises
    ------
    PartitionError
        If weights or inputs have no data, no gradient reaches anything in training, or `repeats` is
        not positive.
    """
    times = measure_operators(captured, args, kwargs, repeats=repeats, training=training)
    return times.calibrated().total_ns


def _compute_dtype(node: fx.Node) -> str:
    values = [read.meta.get("val") for read in (*node.all_input_nodes, node)]
    return compute_dtype([tensor for value in values for tensor in tensors_in(value)])
