"""Stage graphs, read from the module of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import fx, nn

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.capture.model.attributes import stage_results
from fx_bridge.costs.operators import dtype_name
from fx_bridge.presentation.modules import ModuleTree
from fx_bridge.split.checks import check_problem
from fx_bridge.split.graph import StageGraph, StageNode, StageValue, StageWeight
from fx_bridge.split.name_map import tensors_of
from fx_bridge.storages.replay import hint
from fx_bridge.storages.table import StorageTable
from solver import PartitionError, PartitionPlan, PartitionProblem, evaluate

_MOST_WORDS: Final = 98
"""Characters of the description of a stage's modules."""


def stage_graph(
    split: fx.GraphModule, captured: CapturedGraph, problem: PartitionProblem | None = None
) -> StageGraph:
    """Read the stages of a split from its graph.

    Parameters
    ----------
    split : torch.fx.GraphModule
        The result of :func:`~fx_bridge.split.by_plan.split_by_plan` for `captured`, or a copy.
    captured : CapturedGraph
        For the bytes of its values and weights.
    problem : PartitionProblem, optional
        The problem of the plan, for the peak memory of each stage.

    Raises
    ------
    PartitionError
        If `split` is not a split of `captured`, or `problem` is that of another graph.

    Examples
    --------
    >>> from fx_bridge import capture, split_by_plan
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    >>> captured = capture(model, (torch.ones(1, 4),))
    >>> plan = PartitionPlan({"linear": "a", "relu": "b"}, ("a", "b"))
    >>> graph = stage_graph(split_by_plan(captured, plan), captured)
    >>> [(value.name, value.source, value.targets) for value in graph.values]
    [('input_1', None, (0,)), ('linear', 0, (1,)), ('relu', 1, ())]
    """
    names = _stage_names(split, captured)
    table = captured.storage_table
    flow = _flow(split, names)
    originals = {node.name: node for node in captured.graph.nodes}
    values = {
        name: _value(name, originals[node], table, flow) for name, (node, _) in flow.made.items()
    }
    held = [_weights(split.get_submodule(name), table) for name in names]
    owners: dict[str, list[int]] = {}
    for position, weights in enumerate(held):
        for key in weights:
            owners.setdefault(key, []).append(position)
    peaks: Sequence[int | None] = [None] * len(names)
    if problem is not None:
        peaks = _peaks(split.meta["plan"], problem)
    devices = list(split.meta["stages"].values())
    module_of = captured.modules.innermost
    tree, stages = ModuleTree(module_of), []
    for position, name in enumerate(names):
        stage = split.get_submodule(name)
        assert isinstance(stage, fx.GraphModule)
        inputs, outputs = flow.arguments[position], flow.results[position]
        operators = tuple(n.name for n in stage.graph.nodes if n.op in COMPUTE_OPS)
        sources = [values[read].source for read in inputs]
        stages.append(
            StageNode(
                position=position,
                name=name,
                device=devices[position],
                chunk=stage.meta["chunk"],
                operators=operators,
                weights=tuple(
                    StageWeight(key, paths, table.weights[key].size_bytes, tuple(owners[key]))
                    for key, paths in held[position].items()
                ),
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                weights_bytes=sum(table.weights[key].size_bytes for key in held[position]),
                received_bytes=sum(values[read].size_bytes for read in inputs),
                sent_bytes=sum(
                    values[made].size_bytes
                    * len({devices[at] for at in values[made].targets} - {devices[position]})
                    for made in outputs
                ),
                peak_bytes=peaks[position],
                parents=tuple(sorted({source for source in sources if source is not None})),
                children=tuple(sorted({t for made in outputs for t in values[made].targets})),
                modules=tree.words((name for name in operators if name in module_of), _MOST_WORDS),
            )
        )
    return StageGraph(
        stages=tuple(stages),
        values=tuple(values.values()),
        inputs=tuple(name for name, value in values.items() if value.source is None),
        outputs=tuple(flow.returned),
    )


def _stage_names(split: fx.GraphModule, captured: CapturedGraph) -> list[str]:
    if not isinstance(captured, CapturedGraph):
        raise PartitionError(
            f"the captured graph is a {type(captured).__name__}; give what capture returned"
        )
    if not isinstance(split, fx.GraphModule) or "stages" not in split.meta:
        raise PartitionError(
            "the module has no stages; give what split_by_plan or result.split() returned"
        )
    nodes = {node.name for node in captured.graph.nodes}
    places = split.meta["name_map"].nodes
    # A weight without readers has no place in the split.
    unknown = {name for name, found in places.items() if found} - nodes | nodes - places.keys()
    if unknown:
        raise PartitionError(
            f"the split is one of another graph: node {min(unknown)!r} is not in both; give the "
            "captured graph that was split"
        )
    return list(split.meta["stages"])


def returned_values(split: fx.GraphModule) -> dict[fx.Node, str]:
    """Return the nodes that the graph of a split returns, with the names of their values.

    A weight returned unchanged has the name of its ``get_attr`` node.
    """
    names = _flow(split, list(split.meta["stages"])).names
    return {
        node: names[node][0] if node in names else node.name
        for node in split.graph.output_node().all_input_nodes
    }


@dataclass(slots=True)
class _Flow:
    """Values by name, as the graph of the split passes them on."""

    # Node of the captured graph and stage of each value; None for the caller.
    made: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    targets: dict[str, list[int]] = field(default_factory=dict)
    arguments: list[list[str]] = field(default_factory=list)
    results: list[list[str]] = field(default_factory=list)
    returned: dict[str, None] = field(default_factory=dict)
    # Values of each node of the root; of a call of a stage, its whole tuple of results.
    names: dict[fx.Node, list[str]] = field(default_factory=dict)


def _flow(split: fx.GraphModule, names: Sequence[str]) -> _Flow:
    flow = _Flow()
    position_of = {name: position for position, name in enumerate(names)}
    results = flow.names
    for node in split.graph.nodes:
        if node.op == "placeholder":
            flow.made[node.name] = node.name, None
            results[node] = [node.name]
        elif node.op == "call_module":
            position = position_of[str(node.target)]
            reads = [name for read in node.args for name in results[read]]
            flow.arguments.append(reads)
            for name in dict.fromkeys(reads):
                flow.targets.setdefault(name, []).append(position)
            results[node] = []
            for made in stage_results(split.get_submodule(str(node.target))):
                name = made.name if made.op in COMPUTE_OPS else f"{made.name}.written"
                flow.made[name] = made.name, position
                results[node].append(name)
            flow.results.append(results[node])
        elif node.op == "call_function":
            call, index = node.args
            results[node] = [results[call][index]]
        elif node.op == "output":
            for read in node.all_input_nodes:
                flow.returned.update(dict.fromkeys(results.get(read, ())))
    return flow


def _value(name: str, node: fx.Node, table: StorageTable, flow: _Flow) -> StageValue:
    value = node.meta.get("val")
    shape = dtype = None
    if isinstance(value, torch.Tensor):
        shape, dtype = tuple(int(hint(size)) for size in value.shape), dtype_name(value.dtype)
    return StageValue(
        name=name,
        source=flow.made[name][1],
        targets=tuple(flow.targets.get(name, ())),
        is_output=name in flow.returned,
        size_bytes=table.value_bytes.get(node.name, 0),
        kind="Tensor" if shape is not None else type(value).__name__,
        shape=shape,
        dtype=dtype,
    )


def _weights(stage: nn.Module, table: StorageTable) -> dict[str, tuple[str, ...]]:
    """Return the paths of a stage's tensors by the key of their storage."""
    found: dict[str, list[str]] = {}
    for path, _ in tensors_of(stage):
        for key in table.keys_by_name.get(path, ()):  # a copy of a split has other tensors
            found.setdefault(key, []).append(path)
    return {key: tuple(paths) for key, paths in found.items()}


def _peaks(plan: PartitionPlan, problem: PartitionProblem) -> list[int]:
    """Return the memory of each stage as if it were alone on its device."""
    check_problem(problem)
    usage = evaluate(problem, plan).stages
    keys: list[set[str]] = [set() for _ in usage]
    for op in problem.operators:
        keys[plan.stage_index[op.name]].update(op.weights)
    weights, model = problem.weights, problem.memory_model
    return [
        sum(weights[key].held_bytes(model) for key in found)
        + (entry.received_bytes + entry.live_bytes + entry.saved_bytes)
        for found, entry in zip(keys, usage, strict=True)
    ]
