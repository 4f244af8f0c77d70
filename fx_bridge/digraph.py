"""The operator graph of a captured graph, for solvers.

Its attributes are those of :mod:`solver.io.digraph`, defined in ``docs/definition.md``. Every
operator has the name of its FX node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import networkx as nx
import torch
from torch import fx

from fx_bridge.capture.graph import CapturedGraph, check_captured
from fx_bridge.costs.backward import (
    BackwardCost,
    backward_costs,
    backward_passes,
    gradient_buffers,
)
from fx_bridge.costs.class_kernels import (
    ClassCosts,
    attention_by_class,
    attention_of,
    classes_by_kernels,
    merged,
)
from fx_bridge.costs.latency import roofline_latency_ns
from fx_bridge.costs.operators import dtype_name, node_flops, operation_name
from fx_bridge.costs.recomputation import in_place_operators
from fx_bridge.costs.recompute import Recompute
from fx_bridge.memory.profile import forward_workspaces
from fx_bridge.options import DEFAULT_COSTS, Costs, Latencies, Training, check_group
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.storages.replay import hint
from fx_bridge.storages.table import StorageTable
from fx_bridge.storages.weights import WeightStorage
from solver import ColocationGroup, PartitionError
from solver.model.training import Backward

_MOMENTS: Final[Mapping[str, int]] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
_HALF: Final = (torch.float16, torch.bfloat16)


def to_digraph(
    captured: CapturedGraph,
    *,
    costs: Costs = DEFAULT_COSTS,
    training: Training | None = None,
    keep_whole: Sequence[str] = (),
    colocation: bool = True,
) -> nx.DiGraph:
    """Export a captured graph as the operator graph of a partitioning problem.

    Parameters
    ----------
    captured : CapturedGraph
        With values on its nodes, as in every capture.
    costs : Costs
        Speeds or times, workspaces and attention; other fields are ignored.
    training : Training, optional
        Add the data of the memory model ``training``: gradients, optimiser state, the backward
        pass of every operator (:mod:`fx_bridge.costs.backward`), and the operators that may be
        recomputed in it (:mod:`fx_bridge.costs.recomputation`).
    keep_whole : sequence of str
        As in :class:`fx_bridge.Placement`; pins and cuts are added to a problem instead
        (:func:`fx_bridge.split.pins.with_hand_made`).
    colocation : bool
        Add the groups of :func:`fx_bridge.split.colocation.colocation_groups`.

    Returns
    -------
    networkx.DiGraph
        Ready for :func:`~solver.io.digraph.problem_from_digraph`.

    Raises
    ------
    PartitionError
        If latencies omit an operator or name an unknown one, no parameter requires a gradient in
        training, or `keep_whole` names an unknown module or is given without `colocation`.

    Notes
    -----
    A view of a weight is the weight: an operator whose value lives in a weight's storage reads
    that weight, allocates nothing, and is an alias of nothing. An operator that returns both new
    storages and storages of others counts all of them as its own; so does one that returns
    storages of several others. That is an upper bound, and rare.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> graph = to_digraph(capture(torch.nn.Linear(8, 4), (torch.ones(2, 8),)))
    >>> graph.nodes["linear"]["value_bytes"], list(graph.graph["weights"])
    (32, ['weight', 'bias'])
    """
    check_captured(captured, "export", "to_digraph(capture(model, args))")
    check_group(costs, Costs, "costs")
    if training is not None:
        check_group(training, Training, "training")
    if keep_whole and not colocation:
        raise PartitionError("keep_whole needs the groups that colocation=False leaves out")
    _check_latencies(costs.latency_ns, captured, "latency_ns")
    _check_latencies(costs.backward_latency_ns, captured, "backward_latency_ns")
    captured = costs.with_kernels(captured)
    captured = captured if training is None else captured.trained
    found = classes_by_kernels(captured, costs.specs, training=training is not None)
    table = found[0].captured.storage_table
    backward = [{} if training is None else backward_costs(each.captured) for each in found]
    graph = nx.DiGraph()
    _add_nodes(graph, captured, found, backward, costs, training)
    attention = attention_by_class(found)
    buffers = gradient_buffers(found[0].captured, backward[0])
    graph.graph["weights"] = _weights(captured, table, training or Training(), buffers)
    groups: Sequence[ColocationGroup] = ()
    if colocation:
        groups = colocation_groups(
            found[0].captured,
            training=training is not None,
            keep_whole=keep_whole,
            tied_weights="colocate" if training is None else training.tied_weights,
        )
    graph.graph["colocation"] = [
        {"operators": list(group.operators), "reason": group.reason} for group in groups
    ]
    graph.graph["times_from"] = {
        name: spec.source if costs.latency_ns is None else "given numbers"
        for name, spec in costs.specs.items()
    }
    graph.graph["info"] = {
        "capture": captured.how,
        "note": captured.note,
        "made_up": list(table.made_up),
        "attention": attention,
    }
    return graph


def _add_nodes(
    graph: nx.DiGraph,
    captured: CapturedGraph,
    found: Sequence[ClassCosts],
    backward: Sequence[Mapping[str, BackwardCost]],
    costs: Costs,
    training: Training | None,
) -> None:
    """Add inputs, operators with their costs on every device class, and reads."""
    table = found[0].captured.storage_table
    flops = node_flops(captured, table.kinds)
    by_kernels = [
        _operator_costs(each, flops, own, costs, training)
        for each, own in zip(found, backward, strict=True)
    ]
    returned = set(captured.graph.output_node().all_input_nodes)
    modules = captured.modules.innermost
    for node in captured.graph.find_nodes(op="placeholder"):
        size_bytes = table.value_bytes[node.name]
        graph.add_node(node.name, kind="input", value_bytes=size_bytes, info=_value_info(node))
    for order, node in enumerate(captured.operators):
        reads = [read for read in node.all_input_nodes if read.op != "get_attr"]
        own = [(list(f.specs), of[node.name]) for f, of in zip(found, by_kernels, strict=True)]
        graph.add_node(
            node.name,
            kind="operator",
            order=order,
            value_bytes=table.value_bytes[node.name],
            weights=list(table.weights_read.get(node.name, ())),
            is_output=node in returned,
            module=modules[node.name],
            info=_info(node, flops[node.name], attention_of(found, node.name)),
            **merged(own),
        )
        graph.add_edges_from((read.name, node.name) for read in reads)


def _weights(
    captured: CapturedGraph,
    table: StorageTable,
    training: Training,
    buffers: Mapping[str, int],
) -> dict[str, dict[str, int | None]]:
    """Return the bytes of every weight, in inference and in training."""
    shared = _read_several_times(captured, table)
    counted: set[int] = set()
    found: dict[str, dict[str, int | None]] = {}
    for key, weight in table.weights.items():
        training_bytes = _training_bytes(weight, training, key in shared, counted)
        if training_bytes is not None:
            training_bytes += sum(buffers.get(name, 0) for name in weight.names)
        found[key] = {"size_bytes": weight.size_bytes, "training_bytes": training_bytes}
    return found


def _operator_costs(
    found: ClassCosts,
    flops: Mapping[str, int],
    backward: Mapping[str, BackwardCost],
    given: Costs,
    training: Training | None,
) -> dict[str, dict[str, Any]]:
    """Return the time and memory of every operator, as attributes of the operator graph."""
    captured = found.captured
    table = captured.storage_table
    latencies = given.latency_ns
    measured_bytes = given.workspace_bytes or {}
    if latencies is None:
        latencies = roofline_latency_ns(
            captured, found.specs, flops=flops, experts_read=given.experts_read
        )
    workspaces = forward_workspaces(captured, training=training is not None)
    costs: dict[str, dict[str, Any]] = {}
    for node in captured.operators:
        name, latency = node.name, latencies[node.name]
        costs[name] = {
            "latency_ns": dict(latency) if isinstance(latency, Mapping) else latency,
            "workspace_bytes": max(workspaces.get(name, 0), measured_bytes.get(name, 0)),
            **_placement(node, table),
        }
    if training is None:
        return costs
    storage_bytes = {name: int(cost["storage_bytes"]) for name, cost in costs.items()}
    timed = found.specs if given.latency_ns is None else {}
    measured_ns = given.backward_latency_ns or {}
    measured_bytes = given.backward_workspace_bytes or {}
    passes = backward_passes(
        captured,
        backward,
        storage_bytes,
        timed,
        recompute=Recompute.of(training.recompute),
        regions=training.regions,
    )
    for name, entry in passes.items():
        entry = dataclasses.replace(
            entry,
            latency_ns=measured_ns.get(name, entry.latency_ns),
            workspace_bytes=max(entry.workspace_bytes, measured_bytes.get(name, 0)),
        )
        costs[name]["backward"] = _plain(entry)
    for name in in_place_operators(captured):
        costs[name]["in_place"] = True
    return costs


def _check_latencies(latencies: Latencies | None, captured: CapturedGraph, name: str) -> None:
    if latencies is None:
        return
    names = {node.name for node in captured.operators}
    missing, unknown = names - set(latencies), set(latencies) - names
    if missing or unknown:
        why = f"has no entry for operator {min(missing)!r}" if missing else ""
        why = why or f"names {min(unknown)!r}, which is no operator"
        raise PartitionError(f"{name} {why}; give one entry for every operator of the graph")


def _plain(backward: Backward) -> dict[str, Any]:
    """Return the nonzero fields as plain data."""
    fields = {e.name: getattr(backward, e.name) for e in dataclasses.fields(backward)}
    if isinstance(backward.latency_ns, Mapping):
        fields["latency_ns"] = dict(backward.latency_ns)
    fields |= {"saves": list(backward.saves), "slices": list(backward.slices)}
    return {name: value for name, value in fields.items() if value}


def _placement(node: fx.Node, table: StorageTable) -> dict[str, Any]:
    """Return ``storage_bytes`` and ``alias_of`` of `node`."""
    alias_of = table.alias_of(node)
    own = [s for s in table.storages[node.name] if s.kind != "weight" and alias_of is None]
    return {"storage_bytes": sum(s.size_bytes for s in own), "alias_of": alias_of}


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
    weight: WeightStorage, training: Training, shared: bool, counted: set[int]
) -> int | None:
    """Return the bytes of weight, gradient, moments and master copy; None without gradients.

    Autograd sums the contributions of the operators that share a weight before it adds the sum to
    the gradient of earlier microbatches. A parameter with several weights as parts, such as a
    wrapper that shares one, counts with the first: `counted` holds its identity.
    """
    if not weight.trainable:
        return None
    total_bytes = weight.size_bytes
    for parameter in weight.trainable:
        if id(parameter) in counted:
            continue
        counted.add(id(parameter))
        gradient_bytes = parameter.numel() * parameter.element_size()
        half = parameter.dtype in _HALF and training.master_weights
        state_bytes = parameter.numel() * 4 if half else gradient_bytes
        total_bytes += (1 + shared) * gradient_bytes + _MOMENTS[training.optimizer] * state_bytes
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
    """Return plain data about an operator for reports."""
    info = {"op": node.op, "target": operation_name(node), "flops": flops, **_value_info(node)}
    if attention:
        info["attention"] = attention
    return info
