"""A captured graph at another batch size: its sizes, its times, and an executable module."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from fx_bridge.batch.inputs import BatchInputs, batch_inputs, fake_like, resized_inputs
from fx_bridge.batch.rewrite import rewritten
from fx_bridge.batch.trace import TraceMismatchError, TracePair
from fx_bridge.batch.values import with_values
from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph, capture
from fx_bridge.capture.model.messages import quiet
from fx_bridge.capture.tracers.values import copied
from fx_bridge.costs.operators import operation_name
from fx_bridge.storages.autocast import captured_precision, precision
from fx_bridge.storages.replay import hint
from solver import PartitionError
from solver.model.checks import check_positive

_CHECKS: Final = ("_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")


def rescale(captured: CapturedGraph, batch_size: int) -> CapturedGraph:
    """Return a captured graph at another batch size, without capturing it there.

    Parameters
    ----------
    captured : CapturedGraph
        The batch is dimension 0 of the inputs with the most common length there.
    batch_size : int
        Samples that the returned graph takes.

    Returns
    -------
    CapturedGraph
        Its module runs at that size; its example inputs are those of `captured`, the samples
        repeated. It has the nodes of a capture at that size. `captured` is not changed.

    Raises
    ------
    PartitionError
        If the model takes no such batch: in one line, with the operator that fails.

    Notes
    -----
    Symbolic sizes are replaced by numbers. Without any, the model is captured once more, at twice
    the batch size, on the first call; numbers that differ are assumed linear in the batch size,
    and the result is run on fake tensors to confirm it. A batch of one can take another path
    through a model: from one, and to one, that batch is compared too. A graph without its model is
    followed by rules; see :func:`fx_bridge.batch.table.batch_dimensions`.

    Examples
    --------
    >>> from torch import nn
    >>> captured = capture(nn.Linear(8, 4), (torch.ones(2, 8),))
    >>> rescale(captured, 32).operators[0].meta["val"].shape
    torch.Size([32, 4])
    """
    check_positive(batch_size, "batch_size")
    inputs = batch_inputs(captured)
    if not inputs.symbols and batch_size == inputs.size:
        return captured
    args, kwargs = resized_inputs(captured, inputs, batch_size)
    with quiet():
        module = sized(captured, inputs, batch_size)
    if inputs.symbols:
        module = _folded(module, captured)
    made = replace(captured, module=module, args=args, kwargs=kwargs)
    if captured.source is not None:
        made.__dict__["_traces"] = _traces(captured, inputs)
    return made


def sized(captured: CapturedGraph, inputs: BatchInputs, batch_size: int) -> fx.GraphModule:
    """Return a graph with the nodes of `captured` and the values of another batch size.

    To and from a batch of one the nodes are those of a capture at the new size.
    """
    if inputs.symbols:
        return _at_symbol(captured, inputs, batch_size)
    if captured.source is not None:
        return _from_traces(captured, inputs, batch_size)
    return rewritten(captured, inputs, batch_size)


# -- symbolic sizes ------------------------------------------------------------------------


def _at_symbol(captured: CapturedGraph, inputs: BatchInputs, batch_size: int) -> fx.GraphModule:
    """Return a copy of a graph with symbolic sizes whose values are those of `batch_size`."""
    module = copied(captured.module)
    known = inputs.symbol_values(batch_size)
    for node in module.graph.find_nodes(op="placeholder"):
        node.meta["val"] = pytree.tree_map(lambda leaf: _number(leaf, known), node.meta.get("val"))
    return with_values(module, captured, batch_size)


def _number(leaf: Any, known: dict[Any, Any]) -> Any:
    if isinstance(leaf, torch.Tensor):
        sizes = [_number(size, known) for size in leaf.size()]
        return fake_like(leaf, sizes, [_number(stride, known) for stride in leaf.stride()])
    if isinstance(leaf, torch.SymInt):
        replaced = leaf.node.expr.xreplace(known)
        return int(replaced) if replaced.is_number else hint(leaf)
    return leaf


def _folded(module: fx.GraphModule, captured: CapturedGraph) -> fx.GraphModule:
    """Replace numbers that `module` computes by their values, and drop unused operators.

    Checks of sizes go, and slices of a whole dimension: a capture at a fixed size has none, or an
    alias if nothing else is taken.
    """
    graph = module.graph
    symbolic = {node.name: node.meta.get("val") for node in captured.graph.nodes}
    for node in reversed(list(graph.nodes)):
        name = getattr(getattr(node.target, "_schema", None), "name", "").rpartition("::")[2]
        if name in _CHECKS and not node.users:
            graph.erase_node(node)
        elif name == "slice" and _takes_all(node, symbolic[node.name]):
            if _part_of_index(node):
                node.replace_all_uses_with(node.all_input_nodes[0])
                graph.erase_node(node)
            else:
                node.target, node.args = torch.ops.aten.alias.default, (node.args[0],)
    values = {node: node.meta.get("val") for node in graph.nodes if node.op in COMPUTE_OPS}
    numbers = {node: value for node, value in values.items() if isinstance(value, (int, float))}
    for node in graph.nodes:
        if node.op != "output" and not numbers.keys().isdisjoint(node.all_input_nodes):
            arguments = (node.args, node.kwargs)
            node.args, node.kwargs = map_arg(arguments, lambda read: numbers.get(read, read))
    for node in reversed(numbers):
        if not node.users:
            graph.erase_node(node)
    module.recompile()
    return module


def _takes_all(node: fx.Node, symbolic: Any) -> bool:
    source = node.all_input_nodes[0].meta["val"]
    dim = node.args[1] if len(node.args) > 1 else 0
    asked = isinstance(dim, int) and isinstance(symbolic.shape[dim], torch.SymInt)
    return asked and source.shape == node.meta["val"].shape


def _part_of_index(node: fx.Node) -> bool:
    """Return True if the next step of one expression ``x[:, ...]`` reads this one's result."""
    user = next(iter(node.users), None)
    name = operation_name(user) if user is not None else ""
    steps = ("slice", "select", "unsqueeze", "index", "alias")
    same = user is not None and user.meta.get("stack_trace") == node.meta.get("stack_trace")
    return len(node.users) == 1 and name in steps and same


# -- two traces ----------------------------------------------------------------------------


def _traces(captured: CapturedGraph, inputs: BatchInputs) -> dict[int, CapturedGraph]:
    """Return the captures of one model by batch size, which are kept with the graph."""
    traces: dict[int, CapturedGraph] = captured.__dict__.setdefault("_traces", {})
    traces.setdefault(inputs.size, captured)
    return traces


def _trace(captured: CapturedGraph, inputs: BatchInputs, batch_size: int) -> CapturedGraph:
    traces = _traces(captured, inputs)
    if batch_size not in traces:
        args, kwargs = resized_inputs(captured, inputs, batch_size)
        assert captured.source is not None
        try:
            with precision(captured_precision(captured.module)):
                traces[batch_size] = capture(
                    captured.source,
                    args,
                    kwargs,
                    constants=captured.constants,
                    check=captured.check,
                )
        except PartitionError as error:
            raise PartitionError(f"the model takes no batch of {batch_size}: {error}") from error
    return traces[batch_size]


def _from_traces(captured: CapturedGraph, inputs: BatchInputs, batch_size: int) -> fx.GraphModule:
    size = inputs.size
    traces = _traces(captured, inputs)
    if batch_size == 1:
        return copied(_trace(captured, inputs, 1).module)
    other = next((known for known in sorted(traces) if known > 1 and known != size), 2 * size)
    try:
        _trace(captured, inputs, other)
    except PartitionError:
        # The model may still accept `batch_size`.
        return copied(_trace(captured, inputs, batch_size).module)
    # A batch of one may take another path through the model.
    for one, two in [(size, other), (other, 2 * other)][: 2 if size == 1 else 1]:
        pair = _trace(captured, inputs, one), _trace(captured, inputs, two)
        try:
            return TracePair(*pair, (one, two)).at(batch_size)
        except TraceMismatchError as difference:
            reason = f"the graph of a batch of {two} is another than that of {one}: {difference}"
    raise PartitionError(f"{reason}; capture the model at each batch size")
