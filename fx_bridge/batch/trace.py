"""One model traced at two batch sizes, and the numbers of its graph that depend on the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.batch.inputs import fake_like
from fx_bridge.batch.values import SizedReplay, with_values
from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.capture.model.attributes import attribute_at
from fx_bridge.capture.tracers.values import copied
from fx_bridge.storages.replay import hint
from solver import PartitionError


class TraceMismatchError(Exception):
    """Two traces have different nodes; the message names the first difference."""


@dataclass(frozen=True)
class TracePair:
    """A graph captured at two batch sizes, `sizes`, node by node."""

    one: CapturedGraph
    two: CapturedGraph
    sizes: tuple[int, int]

    def __post_init__(self) -> None:
        ones, twos = list(self.one.graph.nodes), list(self.two.graph.nodes)
        for first, second in zip(ones, twos, strict=False):
            same = (first.op, first.name) == (second.op, second.name)
            if not same or (first.op != "call_function" and first.target != second.target):
                raise TraceMismatchError(f"{first.name!r} is {second.name!r} there")
            if first.op == "call_function" and str(first.target) != str(second.target):
                raise TraceMismatchError(f"{first.name!r} calls {second.target} there")
        if len(ones) != len(twos):
            raise TraceMismatchError(f"it has {len(twos)} nodes there, not {len(ones)}")

    def at(self, batch_size: int) -> fx.GraphModule:
        """Return the graph at another batch size, with values.

        Every number in it is assumed linear in the batch size; the graph is run on fake tensors,
        and the resulting sizes must be linear too. PartitionError if they are not, or an operator
        fails at that size.
        """
        module = copied(self.one.module)
        scale = _Linear(self.sizes, batch_size)
        pairs = {
            node.name: (node.meta.get("val"), other.meta.get("val"))
            for node, other in zip(self.one.graph.nodes, self.two.graph.nodes, strict=True)
        }
        others = list(self.two.graph.nodes)
        for node, other in zip(module.graph.nodes, others, strict=True):
            if node.op == "get_attr":
                self._check_constant(node, other)
            elif node.op in COMPUTE_OPS or node.op == "output":
                scale.node = node.name
                node.args = scale(node.args, other.args)
                node.kwargs = scale(node.kwargs, other.kwargs)
            elif node.op == "placeholder":
                node.meta["val"] = scale.value(*pairs[node.name])
        module.recompile()
        replay = _PairReplay(module, pairs, scale)
        with_values(module, self.one, batch_size, replay)
        for node, value in replay.values.items():
            scale.node = node.name
            scale.check(value, *pairs[node.name])
        return module

    def _check_constant(self, node: fx.Node, other: fx.Node) -> None:
        ones, twos = (
            attribute_at(c.module, str(n.target)) for c, n in ((self.one, node), (self.two, other))
        )
        if ones is twos or not isinstance(ones, torch.Tensor) or not isinstance(twos, torch.Tensor):
            return
        same = ones.shape == twos.shape and ones.dtype == twos.dtype
        if not same or not (ones.is_meta or torch.equal(ones, twos)):
            raise PartitionError(
                f"the constant {node.target!r} depends on the batch size; make it in forward by "
                "an operator such as torch.arange"
            )


class _PairReplay(SizedReplay):
    def __init__(self, module: fx.GraphModule, pairs: Mapping[str, Any], scale: _Linear) -> None:
        super().__init__(module)
        self.pairs = pairs
        self.scale = scale

    def substitute(self, node: fx.Node) -> Any:
        self.record(node)
        return pytree.tree_map(self._concrete, self.scale.value(*self.pairs[node.name]))


class _Linear:
    """Numbers at a batch size, from those at two others."""

    def __init__(self, sizes: tuple[int, int], batch_size: int) -> None:
        self.ratio = Fraction(batch_size - sizes[0], sizes[1] - sizes[0])
        self.batch_size = batch_size
        self.sizes = sizes
        self.node = ""

    def number(self, one: int, two: int) -> int:
        """Return the number; raise PartitionError if it is no integer."""
        if one == two:
            return one
        found = one + (two - one) * self.ratio
        if found.denominator != 1:
            raise PartitionError(
                f"the model takes no batch of {self.batch_size}: a size of node {self.node!r}, "
                f"{one} in a batch of {self.sizes[0]} and {two} in one of {self.sizes[1]}, "
                "would be no integer"
            )
        return int(found)

    def __call__(self, one: Any, two: Any) -> Any:
        """Return the arguments of a node of the first graph at the batch size."""
        if isinstance(one, fx.Node):
            return one
        if isinstance(one, int) and not isinstance(one, bool) and isinstance(two, int):
            return self.number(one, two)
        if isinstance(one, str) and isinstance(two, str):
            return one  # the message of an assertion
        if isinstance(one, slice) and isinstance(two, slice):
            parts = ("start", "stop", "step")
            return slice(*(self(getattr(one, part), getattr(two, part)) for part in parts))
        if isinstance(one, (tuple, list)) and len(one) == len(two):
            scaled = [self(a, b) for a, b in zip(one, two, strict=True)]
            return type(one)(*scaled) if hasattr(one, "_fields") else type(one)(scaled)
        if isinstance(one, dict) and one.keys() == two.keys():
            return {key: self(value, two[key]) for key, value in one.items()}
        if one != two and not (one is None and two is None):
            raise PartitionError(
                f"node {self.node!r} has the argument {one!r} in a batch of {self.sizes[0]} and "
                f"{two!r} in one of {self.sizes[1]}; capture the model at each batch size"
            )
        return one

    def value(self, one: Any, two: Any) -> Any:
        """Return a node's value with the sizes of the batch size."""
        leaves, structure = pytree.tree_flatten(one)
        others = pytree.tree_leaves(two)
        if len(leaves) != len(others):
            return one
        return pytree.tree_unflatten(
            [self._leaf(a, b) for a, b in zip(leaves, others, strict=True)], structure
        )

    def _leaf(self, one: Any, two: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return fake_like(one, self._sizes(one, two))
        if isinstance(one, (int, torch.SymInt)) and not isinstance(one, bool):
            return self.number(hint(one), hint(two))
        return one

    def _sizes(self, one: torch.Tensor, two: torch.Tensor) -> list[int]:
        return [self.number(hint(a), hint(b)) for a, b in zip(one.shape, two.shape, strict=True)]

    def check(self, value: Any, one: Any, two: Any) -> None:
        """Raise PartitionError unless `value` has the sizes expected from two others."""
        leaves = [pytree.tree_leaves(tree) for tree in (value, one, two)]
        if len({len(found) for found in leaves}) != 1:
            return
        for made, first, second in zip(*leaves, strict=True):
            if all(isinstance(leaf, torch.Tensor) for leaf in (made, first, second)):
                sizes = self._sizes(first, second)
                if list(made.shape) != sizes:
                    raise PartitionError(
                        f"node {self.node!r} yields {list(made.shape)} in a batch of "
                        f"{self.batch_size}, where {list(first.shape)} in one of {self.sizes[0]} "
                        f"and {list(second.shape)} in one of {self.sizes[1]} lead to expect "
                        f"{sizes}; capture the model at this size"
                    )
