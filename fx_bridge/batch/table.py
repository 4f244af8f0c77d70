"""The batch dimension of every value, values equal for all samples, and operators that mix them.

The graph is run on fake tensors at a batch size that divides no other size in it: rules follow the
samples through every operator (:mod:`fx_bridge.batch.propagation`), and the resulting sizes must be
those that the rules expect. :mod:`fx_bridge.batch.resize` makes the graph at that size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.batch.inputs import BatchInputs, batch_inputs
from fx_bridge.batch.propagation import BatchRun
from fx_bridge.batch.resize import sized
from fx_bridge.batch.rules.dims import BatchDim
from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.model.messages import quiet
from fx_bridge.storages.replay import hint
from solver import PartitionError
from solver.model.checks import only_given

__all__ = ["BatchDim", "BatchTable", "batch_dimensions", "check_microbatchable"]


@dataclass(frozen=True, slots=True, eq=False)
class BatchTable:
    """The relation of every value of a graph to the batch.

    Attributes
    ----------
    values : mapping of str to BatchDim, or a structure of these
        By node name: one for a tensor, one for each element of a tuple. Results of the graph are
        described at its end, other values when computed, before later writes in place.
    writes : mapping of str to BatchDim
        For each operator that writes to a parameter or buffer, the state of the written tensor.
    batch_size : int
        Of the graph.
    inputs : mapping of str to tuple of int or None
        For each placeholder the dimension of the batch in each of its leaves.
    checked : bool
        True if the rules were compared with the sizes at another batch size.
    note : str
        The reason why not.
    numbers : tuple of int
        Numbers among the results of the graph that change with the batch; if not checked, those
        that may.
    """

    values: Mapping[str, Any]
    writes: Mapping[str, BatchDim]
    batch_size: int
    inputs: Mapping[str, tuple[int | None, ...]]
    checked: bool
    note: str = ""
    numbers: tuple[int, ...] = ()
    __repr__ = only_given

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)


def batch_dimensions(captured: CapturedGraph, *, batch_size: int | None = None) -> BatchTable:
    """Find the batch in every value of a graph.

    Parameters
    ----------
    batch_size : int, optional
        Inputs with this number of rows in dimension 0 hold the batch there; by default the most
        common number of rows.

    Returns
    -------
    BatchTable
        An uncertain placeholder, ``get_attr`` or operator is ``"unknown"``, with a reason.

    Raises
    ------
    PartitionError
        If no input holds a batch.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> captured = capture(torch.nn.Linear(8, 4), (torch.ones(2, 8),))
    >>> print(batch_dimensions(captured)["linear"])
    batch in dimension 0
    """
    inputs = batch_inputs(captured, batch_size)
    run: BatchRun | None = None
    note = ""
    for size in _unique_sizes(captured, inputs):
        try:
            with quiet():
                module = sized(captured, inputs, size)
        except PartitionError as error:
            note = note or str(error)
            continue
        run, note = BatchRun(module, size, inputs.dims, unique_size=True), ""
        break
    if run is None:
        run = BatchRun(captured.module, inputs.size, inputs.dims, unique_size=False)
    with quiet():
        run.follow()
    names = [node.name for node in captured.graph.nodes if node.op != "output"]
    return BatchTable(
        MappingProxyType({name: run.states[name] for name in names}),
        MappingProxyType(dict(run.writes)),
        inputs.size,
        inputs.dims,
        run.unique_size,
        note,
        _varying_numbers(captured, run, inputs.size),
    )


def _varying_numbers(captured: CapturedGraph, run: BatchRun, size: int) -> tuple[int, ...]:
    found = pytree.tree_leaves(captured.graph.output_node().args[0])
    others = pytree.tree_leaves(run.graph.output_node().args[0])
    return tuple(
        leaf
        for leaf, other in zip(found, others, strict=True)
        if type(leaf) is int
        and (leaf != other if run.unique_size else bool(leaf) and leaf % size == 0)
    )


def _unique_sizes(captured: CapturedGraph, inputs: BatchInputs) -> list[int]:
    """Return batch sizes that divide no other size: a prime, and that times the graph's own."""
    others = {1}
    for node in captured.graph.nodes:
        for leaf in pytree.tree_leaves((node.meta.get("val"), node.args, node.kwargs)):
            if isinstance(leaf, torch.Tensor):
                others.update(int(hint(size)) for size in leaf.shape)
            elif type(leaf) is int:
                others.add(leaf)
    prime = 13
    while any(size % prime == 0 for size in others if size):
        prime = int(sympy.nextprime(prime))
    return [prime] if inputs.size == 1 else [prime, prime * inputs.size]


def check_microbatchable(captured: CapturedGraph, table: BatchTable | None = None) -> BatchTable:
    """Raise PartitionError unless parts of the batch, run by themselves, give the same outputs.

    It names the operator that mixes samples or may do so, with its module and source line. The
    result is `table`, made here if it is not given.
    """
    if table is None:
        table = batch_dimensions(captured)
    elif not isinstance(table, BatchTable):
        raise PartitionError(
            f"table is a {type(table).__name__}; leave it out, or give batch_dimensions(captured)"
        )
    nodes = {node.name: node for node in captured.graph.nodes}
    if {name for name, node in nodes.items() if node.op != "output"} != set(table):
        raise PartitionError("table is of another graph; give batch_dimensions(captured)")
    outputs = [
        (nodes.get(state.origin or read.name, read), state)
        for read in pytree.tree_leaves(captured.graph.output_node().args[0])
        for state in pytree.tree_leaves(table[read.name] if isinstance(read, fx.Node) else ())
        if state.kind not in ("batch", "replicated", "partial")
    ]
    for node, state in outputs:
        if state.mixes:
            raise PartitionError(
                f"{place(node)} mixes samples of the batch: {state.reason}; {_REMEDY}"
            )
    for name in table.writes:
        raise PartitionError(
            f"{place(nodes[name])} writes to a parameter or buffer, which the next microbatch "
            "would read; call eval(), or make it an input and an output"
        )
    for node, state in outputs:
        if state.kind == "index":
            raise PartitionError(
                f"output {node.name!r} counts the samples of the batch, so microbatches would "
                "start anew; leave it out of the outputs"
            )
        raise PartitionError(
            f"{place(node)} may mix samples of the batch: {state.reason or state}; {_REMEDY}"
        )
    if not table.checked and table.batch_size > 1:
        raise PartitionError(f"it is not certain that samples are not mixed: {table.note}")
    return table


_REMEDY = "run the whole batch at once, or change that operator to work on each sample alone"


def place(node: fx.Node) -> str:
    """Return a node's name with its module and its source line."""
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
