"""The graph of a stage as a list of operators to run, region by region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from torch import fx, nn
from torch.fx.node import map_arg

from fx_bridge.recomputation.decisions import Decisions
from fx_bridge.storages.replay import last_reads


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A node of the graph, and the values dropped after it."""

    node: fx.Node
    again: bool  # recomputed
    random: bool  # and draws random numbers then
    written: frozenset[str]  # nodes whose values it reads, writes, and must not write twice
    dropped: tuple[fx.Node, ...]  # values without later readers
    dropped_again: tuple[fx.Node, ...]  # values without later readers in the second run

    def run(self, module: nn.Module, env: dict[fx.Node, Any]) -> Any:
        """Return the value of the node."""
        node = self.node
        if node.op == "get_attr":
            return attrgetter(str(node.target))(module)
        args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
        target: Any = node.target
        if node.op == "call_module":
            target = module.get_submodule(str(target))
        return call(node.op, target, args, kwargs)


def call(op: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call the target of a node."""
    if op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps of one region with recomputation, or outside of all such."""

    steps: tuple[Step, ...]
    again: tuple[Step, ...]  # the recomputed ones


def segments_of(graph: fx.Graph, decisions: Decisions) -> tuple[Segment, ...]:
    """Return the steps of a stage."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    # A placeholder or attribute may have the name of an operator of another stage.
    called = {node for node in nodes if node.op != "get_attr"}
    regions = {n: decisions.regions[n.name] for n in called if n.name in decisions.regions}
    again = {node for node in called if node.name in decisions.again}
    last = last_reads([*nodes, graph.output_node()])
    found: list[Segment] = []
    for _, group in groupby(nodes, regions.get):
        members = list(group)
        rerun = [node for node in members if node in again]
        last_again = last_reads(rerun)
        steps = tuple(
            Step(
                node,
                node in again,
                node in again and node.name in decisions.random,
                decisions.written.get(node.name, frozenset()),
                tuple(last[node]),
                tuple(last_again.get(node, ())),
            )
            for node in members
        )
        found.append(Segment(steps, tuple(step for step in steps if step.again)))
    return tuple(found)
