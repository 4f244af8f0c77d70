"""A captured graph at another batch size: its sizes, its times, and a module that runs."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fx_bridge.batch_inputs import BatchInputs, batch_inputs, resized_inputs
from fx_bridge.batch_trace import NotAlikeError, TracePair
from fx_bridge.capture import COMPUTE_OPS, CapturedGraph, capture
from fx_bridge.messages import first_line
from fx_bridge.replay import Replay, hint
from fx_bridge.tracing import copied
from solver import PartitionError

_CHECKS: Final = ("_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")


def rescale(captured: CapturedGraph, batch_size: int) -> CapturedGraph:
    """Return a captured graph as it is at another batch size, without capturing it there.

    Parameters
    ----------
    captured : CapturedGraph
        The batch is dimension 0 of the inputs, of those that are as long there as most are.
    batch_size : int

    Returns
    -------
    CapturedGraph
        Its module runs at that size; its example inputs are those of `captured`, the samples
        repeated. It has the nodes of a capture at that size. `captured` is not changed.

    Raises
    ------
    PartitionError
        If the model takes no such batch: in one line, which operator stops it.

    Notes
    -----
    Symbolic sizes are replaced by numbers. Where there are none, the model is captured once
    more, at twice the batch size, when it is first asked for; numbers that differ are taken for
    linear in the batch size, and the result is run on fake tensors to see that it is so. A batch
    of one can take another path through a model: from one, and to one, that batch is compared
    too. A graph that came without its model is followed by rules; see
    :func:`fx_bridge.batch.batch_dimensions`.

    Examples
    --------
    >>> captured = capture(nn.Linear(8, 4), (torch.ones(2, 8),))
    >>> rescale(captured, 32).operators[0].meta["val"].shape
    torch.Size([32, 4])
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise PartitionError(f"batch_size is {batch_size!r}; write a number of samples from 1 on")
    inputs = batch_inputs(captured)
    if inputs.symbol is None and batch_size == inputs.size:
        return captured
    module = sized(captured, inputs, batch_size)
    if inputs.symbol is not None:
        module = folded(module)
    args, kwargs = resized_inputs(captured, inputs, batch_size)
    made = CapturedGraph(module, captured.how, captured.note, args, kwargs, captured.source)
    if captured.source is not None:
        made.__dict__["_traces"] = _traces(captured, inputs)
    return made


def sized(captured: CapturedGraph, inputs: BatchInputs, batch_size: int) -> fx.GraphModule:
    """Return a graph with the nodes of `captured` and the values of another batch size.

    At and from a batch of one the nodes are those of a capture at the new size.
    """
    if inputs.symbol is not None:
        return _at_symbol(captured, inputs, batch_size)
    if captured.source is not None:
        return _from_traces(captured, inputs, batch_size)
    from fx_bridge.batch_rewrite import rewritten

    return rewritten(captured, inputs, batch_size)


# -- symbolic sizes ------------------------------------------------------------------------


def _at_symbol(captured: CapturedGraph, inputs: BatchInputs, batch_size: int) -> fx.GraphModule:
    """Return a copy of a graph with symbolic sizes whose values are those of `batch_size`."""
    module = copied(captured.module)
    known = {inputs.symbol: inputs.symbol_value(batch_size)}
    for node in module.graph.find_nodes(op="placeholder"):
        node.meta["val"] = pytree.tree_map(lambda leaf: _number(leaf, known), node.meta.get("val"))
    return with_values(module, captured, batch_size)


def _number(leaf: Any, known: dict[Any, int]) -> Any:
    if isinstance(leaf, torch.Tensor):
        sizes, strides = (
            [_number(number, known) for number in numbers]
            for numbers in (leaf.size(), leaf.stride())
        )
        return torch.empty_strided(sizes, strides, dtype=leaf.dtype, device="meta").to(leaf.device)
    if isinstance(leaf, torch.SymInt):
        replaced = leaf.node.expr.xreplace(known)
        return int(replaced) if replaced.is_number else hint(leaf)
    return leaf


def with_values(module: fx.GraphModule, captured: CapturedGraph, batch_size: int) -> fx.GraphModule:
    """Write the values of all nodes of `module` from those of its placeholders.

    Raises
    ------
    PartitionError
        If a node does not run that runs in `captured`.
    """
    replay = SizedReplay(module)
    replay.replay()
    unexpected = set(replay.made_up) - set(captured.storage_table.made_up)
    if unexpected:
        name = min(unexpected, key=replay.made_up.index)
        raise refusal(captured, name, batch_size, replay.failures.get(name))
    for node, value in replay.values.items():
        if node.op != "get_attr" and not isinstance(value, nn.Module):
            node.meta["val"] = value
    return module


class SizedReplay(Replay):
    """A replay that remembers why nodes do not run."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.failures: dict[str, BaseException] = {}

    def substitute(self, node: fx.Node) -> Any:
        """Return a value for a node that cannot run; called while its error is handled."""
        import sys

        error = sys.exc_info()[1]
        if error is not None:
            self.failures[node.name] = error
        return super().substitute(node)


def refusal(
    captured: CapturedGraph, name: str, batch_size: int, error: BaseException | None
) -> PartitionError:
    """Return the error for a batch size that a node does not take."""
    node = next(node for node in captured.graph.nodes if node.name == name)
    why = f" ({type(error).__name__}: {first_line(error)})" if error is not None else ""
    return PartitionError(
        f"the model takes no batch of {batch_size}: {place(node)} does not run{why}"
    )


def place(node: fx.Node) -> str:
    """Return a node's name with its module and the source line that made it."""
    words = [f"operator {node.name!r}"]
    stack = node.meta.get("nn_module_stack")
    path = str(list(stack.values())[-1][0]) if stack else ""
    if path:
        words.append(f"in module {path!r}")
    trace = node.meta.get("stack_trace")
    lines = [line.strip() for line in str(trace or "").splitlines() if line.strip()]
    found = [n for n, line in enumerate(lines) if line.startswith("File ")]
    if found:
        file, _, rest = lines[found[-1]].removeprefix('File "').partition('", line ')
        number = rest.partition(",")[0]
        source = lines[found[-1] + 1] if found[-1] + 1 < len(lines) else ""
        words.append(f"at {file}:{number}, {source!r}")
    return " ".join(words)


def folded(module: fx.GraphModule) -> fx.GraphModule:
    """Replace the numbers that `module` computes by their values, and drop its checks of sizes."""
    graph = module.graph
    for node in reversed(list(graph.nodes)):
        name = getattr(getattr(node.target, "_schema", None), "name", "").rpartition("::")[2]
        if name in _CHECKS and not node.users:
            graph.erase_node(node)
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op not in COMPUTE_OPS or not isinstance(value, (int, float)):
            continue
        for user in list(node.users):
            if user.op != "output":
                swap = {node: value}
                user.args = fx.node.map_arg(user.args, lambda n, s=swap: s.get(n, n))
                user.kwargs = fx.node.map_arg(user.kwargs, lambda n, s=swap: s.get(n, n))
    for node in reversed(list(graph.nodes)):
        unused = node.op in COMPUTE_OPS and not node.users
        if unused and isinstance(node.meta.get("val"), (int, float)):
            graph.erase_node(node)
    module.recompile()
    return module


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
            traces[batch_size] = capture(captured.source, args, kwargs)
        except PartitionError as error:
            raise PartitionError(f"the model takes no batch of {batch_size}: {error}") from error
    return traces[batch_size]


def _from_traces(captured: CapturedGraph, inputs: BatchInputs, batch_size: int) -> fx.GraphModule:
    size = inputs.size
    if batch_size == 1:
        return _trace(captured, inputs, 1).module
    try:
        second = _trace(captured, inputs, 2 * size)
    except PartitionError:
        # Perhaps it takes other sizes than that.
        return _trace(captured, inputs, batch_size).module
    try:
        return _pair(captured, inputs, size, 2 * size).at(batch_size)
    except NotAlikeError as difference:
        if size != 1:
            raise PartitionError(
                f"the graph of a batch of {2 * size} is another than that of {size}: {difference}; "
                "capture the model at each batch size"
            ) from None
    del second
    try:
        return _pair(captured, inputs, 2, 4).at(batch_size)
    except NotAlikeError as difference:
        raise PartitionError(
            f"the graph of a batch of 4 is another than that of 2: {difference}; "
            "capture the model at each batch size"
        ) from None


def _pair(captured: CapturedGraph, inputs: BatchInputs, one: int, two: int) -> TracePair:
    return TracePair(_trace(captured, inputs, one), _trace(captured, inputs, two), (one, two))
