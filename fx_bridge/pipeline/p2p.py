"""The format of values sent between the processes of a pipeline.

Every rank derives it in the same way, by running the graph on fake tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.storages.replay import Replay
from solver import PartitionError


@dataclass(frozen=True, slots=True)
class PassedValue:
    """The format of a sent tensor: contiguous, its dimensions in the order of their strides."""

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    """Dimensions by descending stride. A transposed matrix or a channels-last image is sent in its
    memory layout and has the same layout at the receiver."""
    dtype: torch.dtype
    requires_grad: bool  # the receiver sends its gradient back
    is_shared: bool
    """It shares memory with a weight or graph input and is copied before it is sent, so that later
    writes there do not change it."""

    def example(self) -> torch.Tensor:
        """Return a meta tensor in the sent format."""
        shape = [self.shape[dim] for dim in self.order]
        made = torch.empty(shape, dtype=self.dtype, device="meta")
        return made.requires_grad_(self.requires_grad)

    def packed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return `tensor` in the sent format.

        Raises PartitionError if its shape or dtype is not the expected one, or it needs a gradient
        that the receiver will not send.
        """
        if tuple(tensor.shape) != self.shape or tensor.dtype != self.dtype:
            raise PartitionError(
                f"{self.name!r} is a {tensor.dtype} of shape {list(tensor.shape)}, but was "
                f"{self.dtype} of shape {list(self.shape)} when the model was captured; pass "
                "inputs like the example's"
            )
        # A returned weight requires a gradient even if the pipeline does not train.
        if tensor.requires_grad and not self.requires_grad and torch.is_grad_enabled():
            raise PartitionError(
                f"{self.name!r} needs a gradient, and did not when the pipeline was built; build "
                "it again after unfreezing weights"
            )
        sent = tensor.permute(self.order)
        if self.is_shared:
            return sent.clone(memory_format=torch.contiguous_format)
        return sent.contiguous()

    def unpacked(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the value of a received tensor, without a copy."""
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        # Without a permutation not even a view: some in-place operators refuse views.
        return tensor if inverse == sorted(inverse) else tensor.permute(inverse)


def passed_values(
    captured: CapturedGraph, names: Iterable[str], *, training: bool
) -> Mapping[str, PassedValue]:
    """Return the sent formats of values, by their names in the ``StageGraph``.

    Without `training`, no gradients are sent back. Raises PartitionError if a value is sparse.
    """
    replay = Replay(captured.module)
    # Values require a gradient where those of the model do.
    replay.differentiates = training
    replay.replay()
    values = {node.name: value for node, value in replay.values.items()}
    storages = captured.storage_table.storages
    found: dict[str, PassedValue] = {}
    for name in names:
        node = name.removesuffix(".written") if name not in values else name
        value = values[node]
        if value.layout is not torch.strided:
            raise PartitionError(
                f"{name!r} is a sparse tensor, which does not travel between ranks; put its "
                "readers on the device where it is made"
            )
        found[name] = PassedValue(
            name=name,
            shape=tuple(value.shape),
            order=_by_stride(value),
            dtype=value.dtype,
            requires_grad=value.requires_grad,
            is_shared=any(storage.kind != "operator" for storage in storages.get(node, ())),
        )
    return found


def _by_stride(value: torch.Tensor) -> tuple[int, ...]:
    if value.is_contiguous():
        return tuple(range(value.dim()))
    # An expanded dimension has stride 0 and is materialised when it is sent.
    strides = value.stride()
    return tuple(sorted(range(value.dim()), key=lambda dim: -strides[dim]))
