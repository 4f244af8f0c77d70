"""Transfers between the stages of a placed model (``docs/placement.md``, "What runs when").

These functions are nodes of the graph of a :class:`fx_bridge.placement.model.PlacedModel`; each
takes a tensor or a container of tensors and maps over its tensors. The host has no stream: a
non-blocking copy *to* it leaves a tensor without its values. Such a copy is sent with an event
(:func:`send_to_host`) and waited for at its first reader (:func:`receive`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fx_bridge.checkpoint.tensors import extent_of
from fx_bridge.storages.mutations import memory_of
from solver import PartitionError


@dataclass(frozen=True, slots=True)
class Sent:
    """A pending copy to host memory, whose tensors must not be read before its events."""

    value: Any
    events: tuple[torch.Event, ...]


def move(value: Any, device: torch.device) -> Any:
    """Return `value` on `device`, tensors that are there already as they are.

    The host waits only for copies to the host. Gradients are sent back, except from the meta
    device.
    """
    non_blocking = device.type != "cpu"

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if device.type == "meta" and not tensor.is_meta:
            return tensor.detach().to(device).requires_grad_(tensor.requires_grad)
        return tensor.to(device, non_blocking=non_blocking)

    return tree_map_only(torch.Tensor, moved, value)


def send_to_host(value: Any, device: torch.device) -> Sent:
    """Start to copy `value` from an accelerator to the host; :func:`receive` ends it.

    Only CUDA is known to copy on a stream on which an event can be recorded; other accelerators
    copy blocking.
    """
    events: list[torch.Event] = []

    def start(tensor: torch.Tensor) -> torch.Tensor:
        # Fake tensors of an absent device have nothing to wait for.
        if tensor.device.type != "cuda" or not torch.cuda.is_available():
            return tensor.to(device)
        # Into pinned memory, which its allocator keeps until the copy is done.
        copy = tensor.to(device, non_blocking=True)
        events.append(torch.cuda.current_stream(tensor.device).record_event())
        return copy

    return Sent(tree_map_only(torch.Tensor, start, value), tuple(events))


def receive(sent: Sent) -> Any:
    """Return a value once it has arrived in host memory."""
    for event in sent.events:
        event.synchronize()
    return sent.value


def copy_back(original: Any, moved: Any) -> None:
    """Copy a stage's changes of its copies into the caller's tensors."""
    for theirs, ours in zip(tree_leaves(original), tree_leaves(moved), strict=True):
        # Meta tensors have no values to copy.
        if isinstance(theirs, torch.Tensor) and theirs is not ours and not ours.is_meta:
            theirs.copy_(ours)


def check_apart(written: Sequence[Any], moved: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Raise PartitionError if an input whose copy was written overlaps with another input.

    `moved` has the copies of the inputs in `written`, which a stage writes in place.
    """
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    for theirs, ours in zip(tree_leaves(written), tree_leaves(moved), strict=True):
        if not isinstance(theirs, torch.Tensor) or theirs is ours:
            continue
        # The tensor overlaps with itself.
        if sum(_overlap(theirs, other) for other in tensors) > 1:
            raise PartitionError(
                "two inputs share memory and the model writes to one of them, but on its device "
                "each is a copy; pass a clone of one, or place the stage where the inputs are"
            )


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    if memory_of(one) != memory_of(other) or not one.numel() or not other.numel():
        return False
    if one.layout != torch.strided or other.layout != torch.strided:
        return True
    (first, last), (low, high) = extent_of(one), extent_of(other)
    return first < high and low < last


def call_with_weights(
    stage: nn.Module, weights: dict[str, torch.Tensor], arguments: Sequence[Any]
) -> Any:
    """Call a stage with `weights` in place of its own parameters of these names."""
    return torch.func.functional_call(stage, weights, tuple(arguments), tie_weights=False)


def without_backward(value: Any, lost: str) -> Any:
    """Return a result of the model, whose backward pass is refused because of `lost`."""

    def refuse(_: torch.Tensor) -> None:
        raise PartitionError(
            f"no backward pass through this model: {lost}, or call it for inference"
        )

    for leaf in tree_leaves(value):
        # Inputs and weights have no grad_fn.
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
            leaf.register_hook(refuse)  # type: ignore[no-untyped-call]
    return value


def check_untrained(weight: torch.Tensor, name: str) -> None:
    """Raise PartitionError if a copy of a tied weight would be trained separately."""
    if weight.requires_grad and torch.is_grad_enabled():
        raise PartitionError(
            f"{name!r} is a copy of a weight on another device and would be trained by itself; "
            "call the model under torch.no_grad(), or place it with tied_weights='sum'"
        )
