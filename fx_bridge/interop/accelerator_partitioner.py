"""Partitions by torch's own ``torch.fx.experimental.accelerator_partitioner``.

It runs unchanged, on a copy of the graph. It reads sizes from ``meta["tensor_meta"]``, which
``ShapeProp`` sets by running the model. Here shapes and dtypes come from the capture, so that
models on the meta device can be partitioned too. Values to which ``ShapeProp`` gives no size, at
which torch stops, have one here: tuples the sum of their tensors, assertions and numbers zero.

Only the mode by sizes is offered. The modes by times take time exponential in the number of
operators, ``sparse_nn`` needs calls of embedding modules, which no exported graph has, and
``aot_based`` executes a given partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.fx.passes.shape_prop import TensorMetadata

from fx_bridge.capture.graph import CapturedGraph, check_captured
from fx_bridge.storages.replay import hint, value_bytes
from solver.model.checks import only_given


@dataclass(frozen=True, slots=True)
class TorchPartition:
    """The partitions that torch reports."""

    partition_of: Mapping[str, int]  # of every operator, in execution order
    devices_of: Mapping[int, tuple[int, ...]]
    """Devices of every partition: none if torch found none, several if each runs a copy."""
    __repr__ = only_given


def torch_partition(captured: CapturedGraph, device_bytes: Sequence[int]) -> TorchPartition:
    """Run torch's partitioner on devices of some bytes, and return its report.

    `captured` is not changed. Errors of torch pass through.
    """
    from torch.fx.experimental.accelerator_partitioner import Partitioner
    from torch.fx.experimental.partitioner_utils import Device, PartitionerConfig, PartitionMode

    check_captured(captured, "partition", "torch_partition(capture(model, args), bytes)")
    module, operators = _sized_copy(captured)
    config = PartitionerConfig(
        devices=[Device(f"device {i}", size, i) for i, size in enumerate(device_bytes)],
        mode=PartitionMode.size_based,
    )
    partitioner = Partitioner()
    reported = partitioner.partition_graph(module, module, config)
    return TorchPartition(
        partition_of={
            name: partitioner.node_to_partition[node] for name, node in operators.items()
        },
        devices_of={
            int(entry.submodule_node.name.rpartition("_")[2]): tuple(entry.logical_device_ids)
            for entry in reported.dag.nodes
        },
    )


def _sized_copy(captured: CapturedGraph) -> tuple[fx.GraphModule, dict[str, fx.Node]]:
    """Return a copy whose values have ``meta["tensor_meta"]``, and its operators by name."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    attributes: dict[str, Any] = {}
    for node in captured.graph.nodes:
        target = node.target
        if node.op in ("get_attr", "call_module"):
            target = _renamed(str(target))
            attributes[target] = attrgetter(str(node.target))(captured.module)
        arguments = map_arg((node.args, node.kwargs), lambda read: copies[read])
        copied = graph.create_node(node.op, target, *arguments, name=_renamed(node.name))
        if node.op != "output":
            copied.meta["tensor_meta"] = _metadata(node.meta.get("val"))
        copies[node] = copied
    operators = {node.name: copies[node] for node in captured.operators}
    return fx.GraphModule(attributes, graph), operators


def _renamed(name: str) -> str:
    """Return a name that torch does not take for one of its partitions.

    It reads numbers of partitions from the names submod_0, submod_1 and so on. Exporters give
    these names to regions without gradients.
    """
    return f"region_{name}" if name.startswith("submod_") else name


def _metadata(value: Any) -> TensorMetadata:
    """Return the metadata of ``ShapeProp`` for a value, as far as sizes go."""
    shape, dtype = [value_bytes(value)], torch.uint8
    if isinstance(value, torch.Tensor):
        shape, dtype = [hint(size) for size in value.shape], value.dtype
    return TensorMetadata(
        shape=torch.Size(shape),
        dtype=dtype,
        requires_grad=False,
        stride=(),
        memory_format=None,
        is_quantized=False,
        qparams={},
    )
