"""The state of the generator of an operator's random numbers, saved and restored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx


class NotedState(NamedTuple):
    """The state of the generator of a device."""

    device: torch.device
    state: torch.Tensor


def noted_state(node: fx.Node, read: Sequence[torch.Tensor]) -> NotedState | None:
    """Return the state of the generator that an operator is about to use; None on meta tensors.

    Parameters
    ----------
    read : sequence of torch.Tensor
        Its inputs: it runs on their device, or on that of its argument.
    """
    device = torch.device(node.kwargs.get("device") or "cpu")  # type: ignore[arg-type]
    device = next((t.device for t in read if t.device.type != "cpu"), device)
    if device.type == "meta":
        return None
    return NotedState(device, _generator(device).get_rng_state(*_where(device)))


@contextlib.contextmanager
def drawing_again(noted: NotedState) -> Iterator[None]:
    """Draw the same numbers as from a saved state; the generator's own state is restored."""
    generator, where = _generator(noted.device), _where(noted.device)
    before = generator.get_rng_state(*where)
    generator.set_rng_state(noted.state, *where)
    try:
        yield
    finally:
        generator.set_rng_state(before, *where)


def _generator(device: torch.device) -> Any:
    return torch.random if device.type == "cpu" else torch.get_device_module(device)


def _where(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "cpu" else (device,)
