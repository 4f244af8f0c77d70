"""The scratch graph for torch's ``split_module``, on which its traps cannot occur, and its call.

Operators are in stage order; every attribute is a placeholder, or has a name without dots; metadata
is one reference. ``docs/splitting.md`` has the traps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from torch import fx, nn
from torch.fx.node import map_arg
from torch.fx.passes.split_module import split_module

from fx_bridge.capture.graph import CapturedGraph
from solver import PartitionPlan

ORIGIN: Final = "fxpartition_origin"
"""Metadata key of a scratch node: its node of the captured graph."""


@dataclass(slots=True)
class Scratch:
    """The module to split, and the origins of its names."""

    module: fx.GraphModule
    weight_of: dict[str, fx.Node] = field(default_factory=dict)
    """Scratch placeholder to its get_attr node."""
    path_of: dict[str, str] = field(default_factory=dict)
    """Scratch name of a called or read submodule to its path."""
    stage_of: dict[str, int] = field(default_factory=dict)
    """Stage of every operator of the scratch graph, by name."""


class _ScratchModule(nn.Module):
    """The attributes of a GraphModule that the splitter needs, without generated code."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self.graph = graph


def final_value(value: Any) -> Any:
    """Mark, in the scratch graph, the result of a stage for a value that it writes in place.

    Replaced by `value` in the split.
    """
    return value


def scratch_graph(captured: CapturedGraph, plan: PartitionPlan) -> Scratch:
    """Build the graph to split: operators in stage order, attributes without a path.

    An input or weight that the graph returns, and that an operator writes in place, is returned
    by the stage of that operator: other stages may have only a copy from before the write.
    """
    stage_of = plan.stage_index
    build = _Builder(captured.module)
    operators: list[list[fx.Node]] = [[] for _ in set(stage_of.values())]
    for node in captured.graph.nodes:
        if node.op == "placeholder":
            build.add_input(node)
        elif node.op not in ("get_attr", "output"):
            operators[stage_of[node.name]].append(node)
    for stage, nodes in enumerate(operators):
        for node in nodes:
            build.add_operator(node, stage)
    output = captured.graph.output_node()
    for node, stage in _written_outputs(captured, output, stage_of).items():
        build.add_final(node, stage)
    build.add_output(output)
    return build.scratch


class _Builder:
    def __init__(self, source: fx.GraphModule) -> None:
        self.source = source
        self.graph = fx.Graph()
        self.scratch = Scratch(_ScratchModule(self.graph))  # type: ignore[arg-type]
        self.prefix = "fxp"
        while any(node.name.startswith(self.prefix) for node in source.graph.nodes):
            self.prefix += "_"
        self.made: dict[fx.Node, fx.Node] = {}
        self.finals: dict[fx.Node, fx.Node] = {}
        self.attributes: dict[tuple[int | None, fx.Node], fx.Node] = {}
        self.modules: dict[str, str] = {}

    def add_input(self, node: fx.Node) -> None:
        placeholder = self.graph.create_node(
            "placeholder", node.name, name=node.name, type_expr=node.type
        )
        placeholder.meta[ORIGIN] = node
        self.made[node] = placeholder

    def add_operator(self, node: fx.Node, stage: int) -> None:
        target = self._module(str(node.target)) if node.op == "call_module" else node.target
        operator = self.graph.create_node(
            node.op,
            target,
            self._values(node.args, stage),
            self._values(node.kwargs, stage),
            name=node.name,
            type_expr=node.type,
        )
        operator.meta[ORIGIN] = node
        self.made[node] = operator
        self.scratch.stage_of[operator.name] = stage

    def add_final(self, node: fx.Node, stage: int) -> None:
        """Let `stage` return the content of an input or weight at its end."""
        final = self.graph.call_function(final_value, (self._values(node, stage),))
        final.meta[ORIGIN] = node
        self.finals[node] = final
        self.scratch.stage_of[final.name] = stage

    def add_output(self, node: fx.Node) -> None:
        returned = map_arg(
            node.args[0],
            lambda read: self.finals[read] if read in self.finals else self._values(read, None),
        )
        result = self.graph.output(returned, node.type)
        result.meta[ORIGIN] = node

    def _values(self, arguments: Any, stage: int | None) -> Any:
        return map_arg(
            arguments,
            lambda read: self._attribute(read, stage) if read.op == "get_attr" else self.made[read],
        )

    def _attribute(self, node: fx.Node, stage: int | None) -> fx.Node:
        """Return the stand-in of a get_attr node, one for each stage that reads it."""
        key = stage, node
        if key not in self.attributes:
            if isinstance(attrgetter(str(node.target))(self.source), nn.Module):
                # The body of a torch.cond or a no_grad region: the splitter keeps it in place.
                stand_in = self.graph.create_node("get_attr", self._module(str(node.target)))
            else:
                name = f"{self.prefix}_weight_{len(self.scratch.weight_of)}"
                stand_in = self.graph.create_node("placeholder", name, name=name)
                self.scratch.weight_of[stand_in.name] = node
            stand_in.meta[ORIGIN] = node
            self.attributes[key] = stand_in
        return self.attributes[key]

    def _module(self, path: str) -> str:
        if path not in self.modules:
            name = f"{self.prefix}_module_{len(self.modules)}"
            self.modules[path] = name
            self.scratch.path_of[name] = path
            self.scratch.module.add_module(name, attrgetter(path)(self.source))
        return self.modules[path]


def _written_outputs(
    captured: CapturedGraph, output: fx.Node, stage_of: Mapping[str, int]
) -> dict[fx.Node, int]:
    """Return the inputs and weights that the graph returns, with the stages that write them."""
    reads = [read for read in output.all_input_nodes if read.op in ("placeholder", "get_attr")]
    if not reads:
        return {}
    table = captured.storage_table
    # All operators on a written input or weight are in one stage.
    writer = {
        storage: stage_of[name] for name, storages in table.writes.items() for storage in storages
    }
    found: dict[fx.Node, int] = {}
    for read in reads:
        for storage in table.storages.get(read.name, ()):
            if storage in writer:
                found[read] = writer[storage]
    return found


def split_scratch(scratch: Scratch, names: Sequence[str]) -> fx.GraphModule:
    """Split the scratch graph into children called `names`, in stage order.

    Each has its placeholders first, and a call in the graph of the result.
    """
    split = split_module(
        scratch.module,
        scratch.module,
        lambda node: scratch.stage_of[node.name],
        keep_original_order=True,
        keep_original_node_name=True,
    )
    # Its option for affixes fails on graphs that set the grad mode.
    renamed = {f"submod_{stage}": name for stage, name in enumerate(names)}
    split._modules = {renamed[k]: child for k, child in split._modules.items() if k in renamed}
    for node in list(split.graph.nodes):
        if node.op == "call_module":
            before, node.target = node.name, renamed[node.target]
            if node.target != before:
                node._rename(node.target)
                # A weight of the model may have this name.
                split.graph._graph_namespace._used_names.discard(before)
        elif node.op == "get_attr":
            # The body of a region, which the stages have themselves.
            split.graph.erase_node(node)
    split.meta = {}
    return split
