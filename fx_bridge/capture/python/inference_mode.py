"""Regions of ``torch.inference_mode`` in a trace, recorded as ``torch.no_grad``.

Torch enters and leaves such a region without any operator, so a graph would lack it and train the
operators inside.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

NOTE = "forward uses torch.inference_mode(), which is torch.no_grad() in the graph"
"""The note of a graph with such regions."""


@contextlib.contextmanager
def recorded_inference_mode() -> Iterator[list[str]]:
    """Record regions in the block as regions without gradients; yield a list for the note."""
    notes: list[str] = []
    regions = _Regions()
    guard = torch._C._InferenceMode

    def enter(enabled: bool) -> Any:
        caller = sys._getframe(2).f_globals.get("__name__", "")
        if caller.startswith("torch._subclasses"):
            # Fake tensors are made in a region of their own.
            return guard(enabled)
        if enabled and torch.is_grad_enabled() and NOTE not in notes:
            notes.append(NOTE)
        return regions.region(enabled)

    with mock.patch.object(torch._C, "_InferenceMode", enter):
        yield notes


class _Regions(TorchFunctionMode):
    """Ignores changes of the grad mode in a region, where no operator has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():
            # The body of a condition sets no grad mode.
            return func(*args, **(kwargs or {}))
        if func is torch._C._set_grad_enabled and self.enabled:
            return None
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def region(self, enabled: bool) -> Iterator[None]:
        """Enter a region, or with False leave the enclosing ones, as torch does."""
        before = self.enabled, torch.is_grad_enabled()
        with (
            self if enabled else contextlib.nullcontext(),
            mock.patch.object(torch, "is_inference_mode_enabled", lambda: self.enabled),
        ):
            self._set(enabled, not enabled)
            try:
                yield
            finally:
                self._set(*before)

    def _set(self, enabled: bool, gradients: bool) -> None:
        self.enabled = False
        if torch.is_grad_enabled() != gradients:
            torch._C._set_grad_enabled(gradients)
        self.enabled = enabled
