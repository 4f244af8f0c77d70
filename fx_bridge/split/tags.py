"""Tags made by hand: a name for each operator, and one stage for each name.

torch's ``split_by_tags`` needs a list of tags in topological order and accepts tags that put a
write in place after its reader. Here the order is found, and such conflicts are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx
from torch import fx

from fx_bridge.capture.graph import CapturedGraph, capture, check_captured
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.checks import check_effects, crossing_edges
from solver import PartitionError, PartitionPlan
from solver.model.text import shown


def split_by_tags(
    source: CapturedGraph | fx.GraphModule, tags: Mapping[str, str] | None = None
) -> fx.GraphModule:
    """Split a graph by tags into one submodule per tag.

    Parameters
    ----------
    source : CapturedGraph or torch.fx.GraphModule
        A ``GraphModule`` needs values: capture it first with example inputs if it has none.
        Not changed.
    tags : mapping of str to str, optional
        Operator (by node name) to tag; by default the attribute ``tag`` of the nodes of `source`,
        as for torch's function of this name. Tags of other nodes are ignored.

    Returns
    -------
    torch.fx.GraphModule
        As from :func:`~fx_bridge.split.by_plan.split_by_plan`, with the tags in the place of
        devices: ``meta["stages"]`` maps ``submod_0``, ``submod_1``, … to their tags.

    Raises
    ------
    PartitionError
        In one line: an operator has no tag, the tags form a cycle (with its edges), or they
        separate operators whose order or common storage affects the result.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> captured = capture(model, (torch.ones(1, 4),))
    >>> tags = {"linear": "body", "relu": "body", "linear_1": "head"}
    >>> split_by_tags(captured, tags).meta["stages"]
    {'submod_0': 'body', 'submod_1': 'head'}
    """
    if isinstance(source, fx.GraphModule):
        tags = _tags_of(source) if tags is None else tags
        source = capture(source)
    return split_by_plan(source, plan_from_tags(source, tags))


def plan_from_tags(captured: CapturedGraph, tags: Mapping[str, str] | None = None) -> PartitionPlan:
    """Return the plan that puts each tag's operators on a device of that name.

    The order of devices is one in which data flows forward and random numbers are drawn as before;
    ties go to the tag whose first operator comes first. Arguments and errors are those of
    :func:`split_by_tags`.
    """
    check_captured(captured, "split", "plan_from_tags(capture(model, args), tags)")
    tag_of = _checked(captured, _tags_of(captured.module) if tags is None else tags)
    first_seen = {tag: rank for rank, tag in enumerate(dict.fromkeys(tag_of.values()))}
    example = crossing_edges(captured, tag_of)
    quotient: nx.DiGraph[str] = nx.DiGraph(list(example))
    quotient.add_nodes_from(first_seen)
    if not nx.is_directed_acyclic_graph(quotient):
        edges = []
        for arc in nx.find_cycle(quotient):
            source, target = example[arc[0], arc[1]]
            edges.append(f"{source!r} tagged {arc[0]!r} -> {target!r} tagged {arc[1]!r}")
        raise PartitionError(
            f"the tags form a cycle: {'; '.join(edges)}; give the operators of one of these edges "
            "the same tag"
        )
    drawn = dict.fromkeys(tag_of[node.name] for node in captured.random_operators)
    ordered = quotient.copy()
    nx.add_path(ordered, drawn)
    if not nx.is_directed_acyclic_graph(ordered):
        ordered = quotient
    order = nx.lexicographical_topological_sort(ordered, key=first_seen.__getitem__)
    plan = PartitionPlan(tag_of, tuple(order))
    check_effects(captured, plan, "tag")
    return plan


def _tags_of(module: fx.GraphModule) -> dict[str, str]:
    return {node.name: node.tag for node in module.graph.nodes if hasattr(node, "tag")}


def _checked(captured: CapturedGraph, tags: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(tags, Mapping):
        raise PartitionError(
            f"tags is a {type(tags).__name__}; give a mapping of operator to tag, such as "
            "{'linear': 'first'}"
        )
    nodes = {node.name for node in captured.graph.nodes}
    for name, tag in tags.items():
        if name not in nodes:
            raise PartitionError(f"tags names {name!r}, which is not a node of the graph")
        if not isinstance(tag, str) or not tag:
            raise PartitionError(
                f"the tag of {name!r} is {shown(tag)}; write a name, such as 'first'"
            )
    for node in captured.operators:
        if node.name not in tags:
            raise PartitionError(f"operator {node.name!r} has no tag; give it one")
    return {node.name: tags[node.name] for node in captured.operators}
