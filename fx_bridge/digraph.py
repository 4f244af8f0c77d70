"""From a captured graph to the operator graph that solvers read.

The attributes of the result are those of :mod:`solver.io.digraph`; what they mean is said in
``docs/definition.md``. Every operator has the name of its FX node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import networkx as nx
import torch
from torch import fx

from fx_bridge.capture.graph import CapturedGraph, check_captured
from fx_bridge.costs.backward import backward_passes
from fx_bridge.costs.class_kernels import (
    ClassCosts,
    attention_by_class,
    attention_of,
    classes_by_kernels,
    merged,
)
from fx_bridge.costs.device_specs import DEVICE_SPECS, DeviceSpec
from fx_bridge.costs.operators import dtype_name, node_flops, operation_name, roofline_latency_ns
from fx_bridge.memory.optimizer import Optimizer, check_optimizer
from fx_bridge.memory.profile import forward_workspaces
from fx_bridge.split.colocation import TiedReaders, colocation_groups
from fx_bridge.storages.replay import hint
from fx_bridge.storages.table import StorageTable, WeightStorage
from solver import ColocationGroup, PartitionError
from solver.model.training import Backward

_MOMENTS: Final[Mapping[str, int]] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
_HALF: Final = (torch.float16, torch.bfloat16)


def to_digraph(
    captured: CapturedGraph,
    *,
    specs: Mapping[str, DeviceSpec] = DEVICE_SPECS,
    latency_ns: Mapping[str, int | Mapping[str, int]] | None = None,
    backward_latency_ns: Mapping[str, int | Mapping[str, int]] | None = None,
    workspace_bytes: Mapping[str, int] | None = None,
    backward_workspace_bytes: Mapping[str, int] | None = None,
    training: bool = False,
    optimizer: Optimizer = "adamw",
    master_weights: bool = True,
    colocation: bool = True,
    keep_whole: Sequence[str] = (),
    tied_weights: TiedReaders = "colocate",
) -> nx.DiGraph:
    """Export a captured graph as the operator graph of a partitioning problem.

    Parameters
    ----------
    captured : CapturedGraph
    specs : mapping of str to DeviceSpec
        By device class, for roofline latencies. With the default, ``Device.device_class`` can
        be any preset.
    latency_ns : mapping of str to int, or to mapping of str to int, optional
        Latency of every operator by name, or by name and device class, instead of the roofline;
        when training without `backward_latency_ns`, with that of its backward pass, as
        ``measured_latency_ns(training=True)`` gives it.
    backward_latency_ns : mapping of str to int, or to mapping of str to int, optional
        That of the backward pass of every operator apart, as
        :func:`fx_bridge.costs.timing.measure_operators` gives it; without training of no account.
    workspace_bytes, backward_workspace_bytes : mapping of str to int, optional
        Measured workspaces by operator (:func:`fx_bridge.costs.workspaces.measure_workspaces`),
        which count where they are larger than those that fake tensors show.
    training : bool
        Add what the memory model ``training`` needs: gradients, optimiser state, and the backward
        pass of every operator (:mod:`fx_bridge.costs.backward`).
    optimizer : {"sgd", "momentum", "adam", "adamw"}
        Moments per parameter: none, one, two, two.
    master_weights : bool
        Parameters in 16 bits have a float32 master copy and float32 moments.
    colocation : bool
        Add the groups of :func:`fx_bridge.split.colocation.colocation_groups`.
    keep_whole : sequence of str
        Modules, each of which stays on one device: names, or patterns such as ``"layers.*"``
        (:mod:`fx_bridge.split.keep_whole`).
    tied_weights : {"colocate", "sum"}
        In training, whether all readers of a parameter share a device, or each of their devices
        holds a copy with a gradient and optimiser state of its own.

    Returns
    -------
    networkx.DiGraph
        Ready for :func:`solver.problem_from_digraph`.

    Raises
    ------
    PartitionError
        If latencies leave an operator out or name an unknown one, there are some of backward
        passes alone, `optimizer` is unknown, no parameter requires a gradient in training, or
        `keep_whole` names an unknown module or is given without `colocation`.

    Notes
    -----
    A view of a weight is the weight: an operator whose value lives in a weight's storage reads
    that weight, allocates nothing, and is an alias of nothing. An operator that returns both
    storages of its own and storages of others counts all of them as its own; so does one that
    returns storages of several others. That is an upper bound, and rare.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> graph = to_digraph(capture(torch.nn.Linear(8, 4), (torch.ones(2, 8),)))
    >>> graph.nodes["linear"]["value_bytes"], list(graph.graph["weights"])
    (32, ['weight', 'bias'])
    """
    check_captured(captured, "export", "to_digraph(capture(model, args))")
    check_optimizer(optimizer)
    if keep_whole and not colocation:
        raise PartitionError("keep_whole needs the groups that colocation=False leaves out")
    measured = _Measured.checked(
        captured, latency_ns, backward_latency_ns, workspace_bytes, backward_workspace_bytes
    )
    found = classes_by_kernels(captured, specs, training=training)
    table = found[0].captured.storage_table
    flops = node_flops(captured)
    costs = [_operator_costs(each, flops, measured, training=training) for each in found]

    graph = nx.DiGraph()
    returned = set(captured.graph.output_node().all_input_nodes)
    for node in captured.graph.nodes:
        if node.op == "placeholder":
            graph.add_node(
                node.name,
                kind="input",
                value_bytes=table.value_bytes[node.name],
                info=_value_info(node),
            )
    for order, node in enumerate(captured.operators):
        reads = [read for read in node.all_input_nodes if read.op != "get_attr"]
        own = [(list(f.specs), cost[node.name]) for f, cost in zip(found, costs, strict=True)]
        graph.add_node(
            node.name,
            kind="operator",
            order=order,
            value_bytes=table.value_bytes[node.name],
            weights=list(table.weights_read.get(node.name, ())),
            is_output=node in returned,
            info=_info(node, flops[node.name], attention_of(found, node.name)),
            **merged(own),
        )
        graph.add_edges_from((read.name, node.name) for read in reads)
    shared = _read_several_times(captured, table)
    counted: set[int] = set()
    graph.graph["weights"] = {
        key: {
            "size_bytes": weight.size_bytes,
            "training_bytes": _training_bytes(
                weight, optimizer, master_weights, key in shared, counted
            ),
        }
        for key, weight in table.weights.items()
    }
    groups: Sequence[ColocationGroup] = ()
    if colocation:
        groups = colocation_groups(
            captured, training=training, keep_whole=keep_whole, tied_weights=tied_weights
        )
    graph.graph["colocation"] = [
        {"operators": list(group.operators), "reason": group.reason} for group in groups
    ]
    graph.graph["info"] = {
        "capture": captured.how,
        "note": captured.note,
        "made_up": list(table.made_up),
        "attention": attention_by_class(found),
    }
    return graph


@dataclass(frozen=True, slots=True)
class _Measured:
    """Times and workspaces that a caller gave."""

    latency_ns: Mapping[str, int | Mapping[str, int]] | None
    backward_latency_ns: Mapping[str, int | Mapping[str, int]]
    workspace_bytes: Mapping[str, int]
    backward_workspace_bytes: Mapping[str, int]

    @classmethod
    def checked(
        cls,
        captured: CapturedGraph,
        latency_ns: Mapping[str, int | Mapping[str, int]] | None,
        backward_latency_ns: Mapping[str, int | Mapping[str, int]] | None,
        workspace_bytes: Mapping[str, int] | None,
        backward_workspace_bytes: Mapping[str, int] | None,
    ) -> _Measured:
        if latency_ns is not None:
            _check_latencies(latency_ns, captured, "latency_ns")
        if backward_latency_ns is not None:
            _check_latencies(backward_latency_ns, captured, "backward_latency_ns")
            if latency_ns is None:
                raise PartitionError(
                    "backward_latency_ns is given without latency_ns; give both, or neither"
                )
        return cls(
            latency_ns,
            backward_latency_ns or {},
            workspace_bytes or {},
            backward_workspace_bytes or {},
        )


def _operator_costs(
    found: ClassCosts, flops: Mapping[str, int], measured: _Measured, *, training: bool
) -> dict[str, dict[str, Any]]:
    """Return the time and memory of every operator, as attributes of the operator graph."""
    captured = found.captured
    table = captured.storage_table
    latencies = measured.latency_ns
    if latencies is None:
        latencies = roofline_latency_ns(captured, found.specs, flops=flops)
    workspaces = forward_workspaces(captured, training=training)
    costs: dict[str, dict[str, Any]] = {}
    for node in captured.operators:
        name, latency = node.name, latencies[node.name]
        costs[name] = {
            "latency_ns": dict(latency) if isinstance(latency, Mapping) else latency,
            "workspace_bytes": max(workspaces.get(name, 0), measured.workspace_bytes.get(name, 0)),
            **_placement(node, table),
        }
    if not training:
        return costs
    storage_bytes = {name: int(cost["storage_bytes"]) for name, cost in costs.items()}
    timed = found.specs if measured.latency_ns is None else {}
    for name, entry in backward_passes(captured, storage_bytes, timed).items():
        entry = dataclasses.replace(
            entry,
            latency_ns=measured.backward_latency_ns.get(name, entry.latency_ns),
            workspace_bytes=max(
                entry.workspace_bytes, measured.backward_workspace_bytes.get(name, 0)
            ),
        )
        costs[name]["backward"] = _plain(entry)
    return costs


def _check_latencies(
    latencies: Mapping[str, int | Mapping[str, int]], captured: CapturedGraph, what: str
) -> None:
    if not isinstance(latencies, Mapping):
        raise PartitionError(
            f"{what} is a {type(latencies).__name__}; give a mapping of operator to nanoseconds"
        )
    names = {node.name for node in captured.operators}
    missing, unknown = names - set(latencies), set(latencies) - names
    if missing or unknown:
        why = f"has no entry for operator {min(missing)!r}" if missing else ""
        why = why or f"names {min(unknown)!r}, which is no operator"
        raise PartitionError(f"{what} {why}; give one entry for every operator of the graph")


def _plain(backward: Backward) -> dict[str, Any]:
    """Return the fields that say something, as plain data."""
    fields = {e.name: getattr(backward, e.name) for e in dataclasses.fields(backward)}
    if isinstance(backward.latency_ns, Mapping):
        fields["latency_ns"] = dict(backward.latency_ns)
    return {name: value for name, value in fields.items() if value}


def _placement(node: fx.Node, table: StorageTable) -> dict[str, Any]:
    """Return ``storage_bytes`` and ``alias_of``: whose memory the value of `node` takes."""
    reads = [read for read in node.all_input_nodes if read.op != "get_attr"]
    own = table.allocated(node.name)
    others = {s for s in table.storages[node.name] if s not in own and s.kind != "weight"}
    if not own and len(others) == 1:
        # The last such read: after an in-place write it is the value that was written.
        for read in reversed(reads):
            if others & set(table.storages[read.name]):
                return {"storage_bytes": 0, "alias_of": read.name}
    return {"storage_bytes": sum(s.size_bytes for s in {*own, *others}), "alias_of": None}


def _read_several_times(captured: CapturedGraph, table: StorageTable) -> set[str]:
    """Return the keys of the weights that several operators read, or that are tied."""
    keys_of = table.keys_by_name
    readers: dict[str, set[fx.Node]] = {}
    for node in captured.operators:
        reads = [read for read in node.all_input_nodes if read.op == "get_attr"]
        own = {key for read in reads for key in keys_of.get(str(read.target), ())}
        if node.op == "call_module":
            own.update(table.weights_read.get(node.name, ()))
        for key in own:
            readers.setdefault(key, set()).add(node)
    return {key for key, nodes in readers.items() if len(nodes) > 1}


def _training_bytes(
    weight: WeightStorage,
    optimizer: Optimizer,
    master_weights: bool,
    shared: bool,
    counted: set[int],
) -> int | None:
    """Return the bytes of weight, gradient, moments and master copy; None without gradients.

    Autograd adds up what the operators that share a weight give to its gradient, before all that
    is added to the gradient of earlier microbatches. What several weights are parts of, such as a
    wrapper with a part that others share, counts with the first: `counted` holds its identity.
    """
    if not weight.trainable:
        return None
    total_bytes = weight.size_bytes
    for parameter in weight.trainable:
        if id(parameter) in counted:
            continue
        counted.add(id(parameter))
        gradient_bytes = parameter.numel() * parameter.element_size()
        half = parameter.dtype in _HALF and master_weights
        state_bytes = parameter.numel() * 4 if half else gradient_bytes
        total_bytes += (1 + shared) * gradient_bytes + _MOMENTS[optimizer] * state_bytes
        total_bytes += state_bytes if half else 0
    return total_bytes


def _value_info(node: fx.Node) -> dict[str, Any]:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return {}
    return {
        "shape": [hint(size) for size in value.shape],
        "dtype": dtype_name(value.dtype),
    }


def _info(node: fx.Node, flops: int, attention: object) -> dict[str, Any]:
    """Return what reports show of an operator: plain data."""
    info = {"op": node.op, "target": operation_name(node), "flops": flops, **_value_info(node)}
    stack = node.meta.get("nn_module_stack")
    if stack:
        info["module"] = str(list(stack.values())[-1][0])
    elif node.op == "call_module":
        info["module"] = str(node.target)
    if attention:
        info["attention"] = attention
    return info
