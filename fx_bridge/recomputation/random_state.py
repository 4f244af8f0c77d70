"""The state of the generator from which an operator draws random numbers, noted and set again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True, slots=True)
class NotedState:
    """The state of the generator of a device."""

    device: torch.device
    state: torch.Tensor


def noted_state(node: fx.Node, read: Sequence[torch.Tensor]) -> NotedState | None:
    """Return the state of the generator that an operator is about to use; None on meta tensors.

    Parameters
    ----------
    read : sequence of torch.Tensor
        What it reads: it runs where these are, or where it says.
    """
    device = torch.device(node.kwargs.get("device") or "cpu")  # type: ignore[arg-type]
    device = next((t.device for t in read if t.device.type != "cpu"), device)
    if device.type == "meta":
        return None
    return NotedState(device, _generator(device).get_rng_state(*_where(device)))


@contextlib.contextmanager
def drawing_again(noted: NotedState) -> Iterator[None]:
    """Draw the numbers that were drawn from a state; the generator is left as it was."""
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
