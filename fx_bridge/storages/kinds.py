"""Operators of a graph by kind, so that what depends on the kind alone is asked of one of each.

Two operators are of one kind if they call the same with the same numbers, on tensors of the same
sizes, strides, offsets, types and devices, with gradients alike, of which the same ones are one or
share a storage, and which come alike from weights, inputs or operators. That is known of ATen
operators and those of libraries (`RepeatedCalls.call`); any other is a kind by itself.
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
    """The kinds of operators of a graph.

    Attributes
    ----------
    first : mapping of str to str
        By operator, the first of its kind.
    given : mapping of fx.Node to Given, optional
        The values that the first of each kind reads of other operators, as they were then. None
        if only a run of all operators has them: then each is its own kind.
    """

    first: Mapping[str, str]
    given: Mapping[fx.Node, Given] | None

    def for_all(self, found: Mapping[str, _Found]) -> dict[str, _Found]:
        """Return by operator the value that was found of the first of its kind."""
        return {name: found[first] for name, first in self.first.items() if first in found}


class KindsFound:
    """The kinds of a graph, while it runs on fakes."""

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
        """Note a weight or an input of the graph, and the fake that stands for it."""
        trained = tuple(tensor.requires_grad for tensor in tensor_leaves(original))
        self._origins[node] = node.op, trained
        self._states[node] = changeable(value)

    def note(self, node: fx.Node, call: Call | None, values: Mapping[fx.Node, Any]) -> None:
        """Note an operator that is about to run."""
        reads = node.all_input_nodes
        key: Hashable = node
        if call is not None:
            # A list that is read, and a list of what is read, are one to the operator.
            whence = (self._origins.get(read) or _leaf_count(values[read]) for read in reads)
            key = call.key, tuple(whence)
        first = self._first[node.name] = self._known.setdefault(key, node.name)
        if self._given is None:
            return
        own = {read: values[read] for read in reads if read not in self._states}
        given = given_by(own) if first == node.name else None
        # Weights and inputs are given anew: none may be otherwise than at first.
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
