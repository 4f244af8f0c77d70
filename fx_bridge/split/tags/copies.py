"""Operators of a captured graph run in several stages, by copies of their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import fx
from torch.fx.node import map_arg

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.tracers.values import copied
from solver import Operator, PartitionProblem

Placement: TypeAlias = Mapping[str, tuple[int, ...]]
"""The stages in which each operator runs, in order."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A graph in which every operator runs in one stage."""

    captured: CapturedGraph  # the given one if nothing was copied
    stage_of: Mapping[str, int]  # of every operator, copies included
    instances: Mapping[str, Mapping[int, str]]  # names of a copied operator's nodes by stage

    @property
    def copies(self) -> dict[str, tuple[str, ...]]:
        """The copies of each operator that has any."""
        return {
            name: tuple(copy for copy in by_stage.values() if copy != name)
            for name, by_stage in self.instances.items()
        }

    def problem(self, problem: PartitionProblem) -> PartitionProblem:
        """Return `problem` with the copies among its operators."""
        origin = {
            made: name for name, by_stage in self.instances.items() for made in by_stage.values()
        }
        original = {op.name: op for op in problem.operators}
        operators: list[Operator] = []
        for node in self.captured.operators:
            op, stage = original[origin.get(node.name, node.name)], self.stage_of[node.name]
            changed = replace(
                op,
                name=node.name,
                reads=tuple(self._in_stage(name, stage) for name in op.reads),
                alias_of=op.alias_of and self._in_stage(op.alias_of, stage),
                is_output=op.is_output and node.name == op.name,
            )
            operators.append(changed)
        return problem.replace(operators=tuple(operators))

    def _in_stage(self, name: str, stage: int) -> str:
        return self.instances.get(name, {}).get(stage, name)


def with_copies(captured: CapturedGraph, placement: Placement) -> Copied:
    """Return a graph with a node for each stage in which an operator runs.

    The first stage keeps the original node, which the output reads if at all. Readers read the
    node of their own stage.
    """
    stage_of = {name: places[0] for name, places in placement.items()}
    several = {name: places for name, places in placement.items() if len(places) > 1}
    if not several:
        return Copied(captured, stage_of, {})
    module = copied(captured.module)
    graph = module.graph
    instances: dict[str, dict[int, fx.Node]] = {}

    def read_in(node: fx.Node, stage: int) -> None:
        node.args, node.kwargs = map_arg(
            (node.args, node.kwargs), lambda read: instances.get(read.name, {}).get(stage, read)
        )

    for node in list(graph.nodes):
        if node.name not in placement:
            continue
        first, *others = placement[node.name]
        last = node
        for stage in others:
            with graph.inserting_after(last):
                last = graph.node_copy(node, lambda read: read)
            instances.setdefault(node.name, {first: node})[stage] = last
            stage_of[last.name] = stage
            read_in(last, stage)
        read_in(node, first)
    module.recompile()
    names = {
        name: {stage: node.name for stage, node in by_stage.items()}
        for name, by_stage in instances.items()
    }
    return Copied(replace(captured, module=module), stage_of, names)
