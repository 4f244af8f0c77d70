"""Weights that autocast casts once in a region of forward, in graphs as in the model.

Autocast keeps the cast weight until its outermost region ends, so that gradients of all its readers
add up before they are cast. Tracers switch that off around a model (``disable_autocast_cache`` in
torch/fx/experimental/proxy_tensor.py). They write into the graph of a region that it is off, though
it is on where the model runs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from unittest import mock

import torch


@contextlib.contextmanager
def casting_weights_once() -> Iterator[None]:
    """Let regions that a model enters cache casts as outside, unless the model says otherwise."""
    outside, depth = torch.is_autocast_cache_enabled(), _depth()
    made = torch.autocast.__init__

    @functools.wraps(made)
    def as_outside(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        # A region within another one of the model inherits its setting.
        if cache_enabled is None and _depth() == depth:
            cache_enabled = outside
        made(self, device_type, dtype, enabled, cache_enabled)

    with mock.patch.object(torch.autocast, "__init__", as_outside):
        yield


def _depth() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
