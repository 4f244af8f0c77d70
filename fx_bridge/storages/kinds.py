"""Operators of a graph by kind: one of each kind stands for all in costs that depend on the kind.

Two operators are of one kind if they call the same target with the same numbers, on tensors of the
same sizes, strides, offsets, types, devices and requires_grad. Their operands must coincide or
share storages in the same pattern, and come from weights, inputs or operators equally. That can be
decided for operators of ATen and of libraries (`RepeatedCalls.call`); any other is a kind by
itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx

from fx_bridge.storages.autocast import autocast_dtypes, types_here
from fx_bridge.storages.repeated_calls import Call, Given, changeable, given_by
from fx_bridge.storages.tensor_subclasses import tensor_leaves

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of operators of a graph."""

    first: Mapping[str, str]  # by operator, the first of its kind
    given: Mapping[fx.Node, Given] | None
    """Snapshots of the operands of the first of each kind. None if only a run of all operators has
    them: then each is its own kind."""

    def for_all(self, found: Mapping[str, _Found]) -> dict[str, _Found]:
        """Return, for every operator, the value found for the first of its kind."""
        return {name: found[first] for name, first in self.first.items() if first in found}


class KindsFound:
    """The kinds of a graph, found while it runs on fakes."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._known: dict[Hashable, str] = {}
        self._given: dict[fx.Node, Given] | None = {}
        self._origins: dict[fx.Node, tuple[Hashable, ...]] = {}
        self._states: dict[fx.Node, tuple[Hashable, ...]] = {}
        self._modes: tuple[Hashable, ...] | None = None

    @property
    def kinds(self) -> Kinds:
        """The kinds of the operators that ran."""
        if self._given is None:
            return Kinds({name: name for name in self._first}, None)
        return Kinds(self._first, self._given)

    def begin(self, node: fx.Node, original: Any, value: Any) -> None:
        """Record a weight or an input of the graph, and its fake."""
        trained = tuple(tensor.requires_grad for tensor in tensor_leaves(original))
        self._origins[node] = node.op, trained
        self._states[node] = changeable(value)

    def note(self, node: fx.Node, call: Call | None, values: Mapping[fx.Node, Any]) -> None:
        """Record an operator about to run."""
        reads = node.all_input_nodes
        key: Hashable = node
        if call is not None:
            # A list read from one node, and a list of reads, are the same to the operator.
            whence = (self._origins.get(read) or _leaf_count(values[read]) for read in reads)
            key = call.key, tuple(whence)
        first = self._first[node.name] = self._known.setdefault(key, node.name)
        if self._given is None:
            return
        own = {read: values[read] for read in reads if read not in self._states}
        given = given_by(own) if first == node.name else None
        # Weights and inputs are made anew, so none may have changed since.
        changed = any(
            read in self._states and self._states[read] != changeable(values[read])
            for read in reads
        )
        modes = _modes()
        self._modes = self._modes or modes
        if changed or (first == node.name and given is None) or modes != self._modes:
            self._given = None
        elif given is not None:
            self._given[node] = given


def _leaf_count(value: Any) -> int:
    return -1 if isinstance(value, torch.Tensor) else len(tensor_leaves(value))


def _modes() -> tuple[Hashable, ...]:
    return torch.is_grad_enabled(), *autocast_dtypes(types_here()).items()
