"""The graph of a model at another batch size, from a second capture."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from fx_bridge.batch.inputs import BatchInputs, resized_inputs
from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.storages.autocast import captured_precision, precision
from solver import PartitionError


def sized(captured: CapturedGraph, inputs: BatchInputs, batch_size: int) -> fx.GraphModule:
    """Return a graph with the nodes of `captured` and the values of another batch size.

    Raise PartitionError if the model takes no such batch, or has another graph for it.
    """
    if captured.source is None:
        raise PartitionError(
            "a graph without its model does not say which of its sizes are the batch; capture the "
            "model itself"
        )
    args, kwargs = resized_inputs(captured, inputs, batch_size)
    try:
        with precision(captured_precision(captured.module)):
            other = capture(
                captured.source, args, kwargs, constants=captured.constants, check=captured.check
            )
    except PartitionError as error:
        raise PartitionError(f"the model takes no batch of {batch_size}: {error}") from error
    _check_same_nodes(captured, other, batch_size)
    return other.module


def _check_same_nodes(captured: CapturedGraph, other: CapturedGraph, batch_size: int) -> None:
    """Raise PartitionError unless two captures differ in whole numbers alone."""
    nodes, others = list(captured.graph.nodes), list(other.graph.nodes)
    for node, twin in zip(nodes, others, strict=False):
        same = (node.op, node.name, str(node.target)) == (twin.op, twin.name, str(twin.target))
        if not same:
            difference = f"{node.name!r} is {twin.name!r} there"
        elif node.op == "get_attr" and not _same_constant(captured, other, node):
            difference = f"the constant {node.target!r} has other values there"
        elif not _differ_in_numbers(_arguments(node), _arguments(twin)):
            difference = f"{node.name!r} has other arguments there"
        else:
            continue
        raise PartitionError(f"the graph of a batch of {batch_size} is another: {difference}")
    if len(nodes) != len(others):
        raise PartitionError(
            f"the graph of a batch of {batch_size} is another: it has {len(others)} nodes, not "
            f"{len(nodes)}"
        )


def _arguments(node: fx.Node) -> list[Any]:
    found: list[Any] = []
    map_aggregate((node.args, node.kwargs), found.append)
    return found


def _differ_in_numbers(ones: list[Any], twos: list[Any]) -> bool:
    """Return True if two lists of arguments are equal but for whole numbers and messages."""
    if len(ones) != len(twos):
        return False
    for one, two in zip(ones, twos, strict=True):
        if isinstance(one, fx.Node) and isinstance(two, fx.Node):
            if one.name != two.name:
                return False
        elif type(one) is not type(two) or (type(one) not in (int, str) and one != two):
            return False
    return True


def _same_constant(captured: CapturedGraph, other: CapturedGraph, node: fx.Node) -> bool:
    one, two = (attrgetter(str(node.target))(each.module) for each in (captured, other))
    if one is two or not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
        return True
    same = one.shape == two.shape and one.dtype == two.dtype
    return same and (one.is_meta or torch.equal(one, two))
