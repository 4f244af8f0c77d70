"""The batch of a step, split into the inputs and targets of a rank's microbatches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.batch.microbatches import ChunkSpecs
from fx_bridge.capture.graph import CapturedGraph, placeholder_values
from fx_bridge.split.guards import CapturedCalls
from fx_bridge.storages.replay import hint
from solver import PartitionError


class BatchSplitter:
    """Split inputs and targets into microbatches on a device.

    `captured` is of the size of one microbatch. Of its inputs those called `names` are wanted. A
    batch is split by `specs`, and is one microbatch without any. `calls` refuses numbers and flags
    for which the graph was not captured. In `training`, inputs that require gradients are refused.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        names: Iterable[str],
        specs: ChunkSpecs | None,
        device: torch.device,
        *,
        training: bool,
        calls: CapturedCalls | None = None,
    ) -> None:
        self._captured = captured
        self._calls = calls
        self._placeholders = tuple(captured.graph.find_nodes(op="placeholder"))
        self._names = frozenset(names)
        self._device = device
        self._training = training
        self._microbatches = 1 if specs is None else specs.microbatches
        self._specs: Sequence[Any] = [None] * len(self._placeholders)
        if specs is not None:
            self._specs = placeholder_values(captured, specs.args, specs.kwargs)

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the graph inputs of every microbatch, by name.

        Raises PartitionError if they are not shaped like the example, times the number of
        microbatches, or the model would take another path than the captured one.
        """
        found: list[dict[str, Any]] = [{} for _ in range(self._microbatches)]
        if not args and not kwargs and not self._names:
            return found
        if self._calls is not None:
            args, kwargs = self._calls.as_captured(args, dict(kwargs))
        values = placeholder_values(self._captured, args, kwargs)
        if self._calls is not None:
            self._calls.check_step(values)
        # Values after the first one of *args have no placeholder of their own.
        for node, value, spec in zip(self._placeholders, values, self._specs, strict=False):
            if node.name in self._names:
                for inputs, part in zip(found, self._parts(node, value, spec), strict=True):
                    inputs[node.name] = part
        return found

    def targets(self, target: Any) -> list[Any]:
        """Return the target of every microbatch: its part along dimension 0.

        Raises PartitionError if a tensor cannot be split into equal parts.
        """
        leaves, structure = pytree.tree_flatten(target)
        pieces = [self._target_pieces(leaf) for leaf in leaves]
        return _transposed(pieces, structure, self._microbatches)

    def _parts(self, node: fx.Node, value: Any, spec: Any) -> list[Any]:
        leaves, structure = pytree.tree_flatten(value)
        examples = pytree.tree_leaves(node.meta.get("val"))
        specs = [None] * len(leaves) if spec is None else pytree.tree_leaves(spec)
        if not len(leaves) == len(specs) == len(examples):
            raise PartitionError(
                f"input {node.name!r} has {len(leaves)} parts, but the example had "
                f"{len(examples)}; pass inputs shaped like the example"
            )
        pieces = [
            self._pieces(node.name, leaf, getattr(chunk, "split_dim", None), example)
            for leaf, chunk, example in zip(leaves, specs, examples, strict=True)
        ]
        return _transposed(pieces, structure, self._microbatches)

    def _pieces(self, name: str, leaf: Any, dim: int | None, example: Any) -> Sequence[Any]:
        if not isinstance(leaf, torch.Tensor):
            return [leaf] * self._microbatches
        if isinstance(example, torch.Tensor):
            expected = [int(hint(size)) for size in example.shape]
            where = ""
            if dim is not None:
                expected[dim] *= self._microbatches
                where = f", {self._microbatches} microbatches along dimension {dim}"
            if list(leaf.shape) != expected:
                raise PartitionError(
                    f"input {name!r} has shape {list(leaf.shape)}, but the pipeline takes "
                    f"{expected}{where}; pass that, or capture microbatches of another size"
                )
        if leaf.requires_grad and self._training:
            raise PartitionError(
                f"input {name!r} requires a gradient, and a pipeline computes those of weights "
                "alone; detach it"
            )
        leaf = leaf.to(self._device, non_blocking=True)
        if dim is None:
            return [leaf] * self._microbatches
        return torch.tensor_split(leaf, self._microbatches, dim)

    def _target_pieces(self, leaf: Any) -> Sequence[Any]:
        if not isinstance(leaf, torch.Tensor):
            return [leaf] * self._microbatches
        if self._microbatches > 1 and (not leaf.dim() or leaf.shape[0] % self._microbatches):
            raise PartitionError(
                f"the target has shape {list(leaf.shape)}, of which dimension 0 has no "
                f"{self._microbatches} equal parts; pass one with the samples of the batch there"
            )
        leaf = leaf.to(self._device, non_blocking=True)
        return [leaf] if self._microbatches == 1 else torch.tensor_split(leaf, self._microbatches)


def _transposed(
    pieces: Sequence[Sequence[Any]], structure: pytree.TreeSpec, count: int
) -> list[Any]:
    """Return `count` structures; number i has piece i of every leaf."""
    return [pytree.tree_unflatten([piece[i] for piece in pieces], structure) for i in range(count)]
