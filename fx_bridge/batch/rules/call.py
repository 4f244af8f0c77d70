"""One dispatched ATen call, as input of the rules of batch propagation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from fx_bridge.batch.rules.dims import REPLICATED, BatchDim, mixed, unknown

Outcome = BatchDim | Sequence[BatchDim]
"""One state for all tensors that a call returns, or one for each."""

Rule = Callable[["Call"], Outcome]

RULES: Final[dict[str, Rule]] = {}
"""Rules by ATen operator, named without overload and without the ``_`` of in-place ones."""


def names(text: str) -> frozenset[str]:
    """Return space-separated names."""
    return frozenset(text.split())


def rule(text: str) -> Callable[[Rule], Rule]:
    """Register a rule for the operators named in `text`."""

    def register(function: Rule) -> Rule:
        for name in names(text):
            assert name not in RULES, name
            RULES[name] = function
        return function

    return register


class Call:
    """A call of an ATen operator with the states of its arguments.

    `name` is that of the operator, without overload and without the ``_`` of in-place ones; `node`
    that of the calling node; `arguments` are by the names of the schema, with defaults; `out` is
    the result. With `unique_size`, only the batch's sizes are multiples of `batch_size`.
    """

    def __init__(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        batch_size: int,
        state_of: Callable[[torch.Tensor], BatchDim],
        node: str,
        unique_size: bool,
    ) -> None:
        schema = func._schema
        self.func = func
        self.name = schema.name.rpartition("::")[2]
        # A dunder such as __and__ is not an in-place operator.
        if self.name.endswith("_") and not self.name.endswith("__"):
            self.name = self.name[:-1]
        self.arguments: dict[str, Any] = {
            a.name: a.default_value for a in schema.arguments if a.has_default_value()
        }
        self.arguments.update(zip((a.name for a in schema.arguments), args, strict=False))
        self.arguments.update(kwargs)
        self.out = out
        self.batch_size = batch_size
        self.state_of = state_of
        self.node = node
        self.unique_size = unique_size
        leaves = pytree.tree_leaves((args, kwargs))
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.states = [state_of(tensor) for tensor in self.tensors]

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def op(self) -> str:
        """The name for messages."""
        return f"{self.func.namespace}.{self.name}"

    @property
    def operands(self) -> list[tuple[BatchDim, torch.Size]]:
        """The states and shapes of the tensors among the arguments."""
        return [(s, t.shape) for s, t in zip(self.states, self.tensors, strict=True)]

    @property
    def first(self) -> torch.Tensor:
        """The first tensor among the arguments."""
        return self.tensors[0]

    def state(self, name: str) -> BatchDim:
        """Return the state of a tensor argument; replicated if it is left out."""
        value = self[name]
        return self.state_of(value) if isinstance(value, torch.Tensor) else REPLICATED

    def only(self) -> tuple[BatchDim, torch.Tensor, int]:
        """Return state, tensor and batch dimension of the first argument with samples."""
        return next(
            (state, tensor, state.dim)
            for state, tensor in zip(self.states, self.tensors, strict=True)
            if state.dim is not None
        )

    def dims(self, value: Any, tensor: torch.Tensor) -> tuple[int, ...]:
        """Return dimensions of `tensor` as numbers from 0; all of them for None or none."""
        if value is None or (isinstance(value, (list, tuple)) and not value):
            return tuple(range(tensor.dim()))
        values = value if isinstance(value, (list, tuple)) else [value]
        return tuple(int(dim) % max(tensor.dim(), 1) for dim in values)

    def no_rule(self, why: str = "") -> BatchDim:
        """Return the state of a call that the rules do not cover."""
        return unknown(f"{self.op} {why}" if why else f"there is no rule for {self.op}")

    def mixed(self, why: str) -> BatchDim:
        """Return the state of a result that mixes samples."""
        return mixed(f"{self.op} {why}")


def broadcast(call: Call, operands: Sequence[tuple[BatchDim, Sequence[int]]]) -> BatchDim:
    """Return the state of a result whose operands, of given shapes, are broadcast.

    All operands with the batch must hold it in the same dimension counted from the last, merged in
    the same way, and replicated ones must be broadcast along it.
    """
    rank = max(len(shape) for _, shape in operands)
    found: BatchDim | None = None
    for state, shape in operands:
        if state.dim is None or state.kind == "replicated":
            continue
        here = state.moved(state.dim + rank - len(shape))
        if found is None:
            found = here
        elif found != here:
            if found.kind != here.kind:
                return call.no_rule(f"joins {found} and {here}")
            return call.mixed("joins every sample with others")
    assert found is not None and found.dim is not None
    for state, shape in operands:
        position = found.dim - (rank - len(shape))
        if state.kind == "replicated" and position >= 0 and shape[position] != 1:
            whole = shape[position] == found.factor * call.batch_size
            if not (whole and call.batch_size == 1):
                return call.mixed("gives each sample an entry of its own of a replicated value")
    return found


def pointwise(call: Call) -> BatchDim:
    """Return the state of an elementwise function of broadcast operands."""
    return broadcast(call, call.operands)
