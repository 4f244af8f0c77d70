"""What a placed model runs between its stages: values on their way from device to device.

These functions stand in the graph of a :class:`fx_bridge.placement.model.PlacedModel`; each takes a
value as stages exchange it, a tensor or a container of tensors, and maps over its tensors.

Copies between accelerators, and from the host to one, are ordered by the current streams of
both devices, so that kernels that are launched afterwards see them; the host does not wait.
What arrives *in* host memory is another matter: the host has no stream, and a copy that is not
blocking leaves a tensor that is not there yet. So it is sent with an event (:func:`send_to_host`)
and waited for where it is first read (:func:`receive`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fx_bridge.storages.mutations import memory_of
from solver import PartitionError


@dataclass(frozen=True, slots=True)
class Sent:
    """A value on its way into host memory.

    Attributes
    ----------
    value : Any
        Its tensors must not be read before the events have happened.
    events : tuple of torch.Event
        One for each tensor that is copied asynchronously.
    """

    value: Any
    events: tuple[torch.Event, ...]


def move(value: Any, device: torch.device) -> Any:
    """Return `value` on `device`; what is there already is returned itself.

    The host waits only where the device is the host. Gradients come back the same way, but none
    comes from the meta device.
    """
    non_blocking = device.type != "cpu"

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if device.type == "meta" and not tensor.is_meta:
            return tensor.detach().to(device).requires_grad_(tensor.requires_grad)
        return tensor.to(device, non_blocking=non_blocking)

    return tree_map_only(torch.Tensor, moved, value)


def send_to_host(value: Any, device: torch.device) -> Sent:
    """Start to copy `value` from an accelerator to the host; :func:`receive` ends it.

    CUDA alone is known to record the copy on a stream that an event can be recorded on; from
    other accelerators the copy is blocking.
    """
    events: list[torch.Event] = []

    def start(tensor: torch.Tensor) -> torch.Tensor:
        # Fake tensors of a device that is not there have nothing to wait for.
        if tensor.device.type != "cuda" or not torch.cuda.is_available():
            return tensor.to(device)
        # Into pinned memory, which the allocator for pinned memory keeps until it has happened.
        copy = tensor.to(device, non_blocking=True)
        events.append(torch.cuda.current_stream(tensor.device).record_event())
        return copy

    return Sent(tree_map_only(torch.Tensor, start, value), tuple(events))


def receive(sent: Sent) -> Any:
    """Wait until a value has arrived in host memory, and return it."""
    for event in sent.events:
        event.synchronize()
    return sent.value


def copy_back(original: Any, moved: Any) -> None:
    """Write into the caller's tensors what a stage made of its copies of them."""
    for theirs, ours in zip(tree_leaves(original), tree_leaves(moved), strict=True):
        # There is nothing to write from the meta device.
        if isinstance(theirs, torch.Tensor) and theirs is not ours and not ours.is_meta:
            theirs.copy_(ours)


def check_apart(written: Sequence[Any], moved: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Raise PartitionError where an input that was written elsewhere is a part of another one.

    Parameters
    ----------
    written, moved : sequence
        Inputs that a stage writes in place, and what it wrote.
    inputs : sequence
        All of the call.
    """
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    for theirs, ours in zip(tree_leaves(written), tree_leaves(moved), strict=True):
        if not isinstance(theirs, torch.Tensor) or theirs is ours:
            continue
        # One of them is the tensor itself.
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
    (first, last), (low, high) = (_span_bytes(tensor) for tensor in (one, other))
    return first < high and low < last


def _span_bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where the elements of a tensor begin and end in its storage."""
    lengths = zip(tensor.shape, tensor.stride(), strict=True)
    count = 1 + sum(int((length - 1) * step) for length, step in lengths)
    first = int(tensor.storage_offset())
    return first * tensor.element_size(), (first + count) * tensor.element_size()


def call_with_weights(
    stage: nn.Module, weights: dict[str, torch.Tensor], arguments: Sequence[Any]
) -> Any:
    """Call a stage with `weights` in place of its own parameters of these names."""
    return torch.func.functional_call(stage, weights, tuple(arguments), tie_weights=False)


def without_backward(value: Any, lost: str) -> Any:
    """Return a result of the model through which there is no backward pass, because of `lost`."""

    def refuse(_: torch.Tensor) -> None:
        raise PartitionError(
            f"no backward pass through this model: {lost}, or call it for inference"
        )

    for leaf in tree_leaves(value):
        # What has no function of autograd is an input or a weight.
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
            leaf.register_hook(refuse)  # type: ignore[no-untyped-call]
    return value


def check_untrained(weight: torch.Tensor, name: str) -> None:
    """Raise PartitionError where a copy of a tied weight would be trained by itself."""
    if weight.requires_grad and torch.is_grad_enabled():
        raise PartitionError(
            f"{name!r} is a copy of a weight on another device and would be trained by itself; "
            "call the model under torch.no_grad(), or place it with tied_weights='sum'"
        )
