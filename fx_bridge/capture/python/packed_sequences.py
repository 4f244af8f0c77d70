"""Sizes of packed sequences in a trace, where their lengths are known values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final
from unittest import mock

import torch
from torch import nn

_PAD: Final = torch.ops.aten._pad_packed_sequence.default
_KEY: Final = torch._C.DispatchKey.CompositeImplicitAutograd


@contextlib.contextmanager
def padded_by_operators() -> Iterator[None]:
    """Let ``_pad_packed_sequence`` run on fake tensors, whose memory torch's own would read."""
    with mock.patch.dict(_PAD.py_kernels, {_KEY: _padded}):
        _PAD._dispatch_cache.clear()
        try:
            yield
        finally:
            _PAD._dispatch_cache.clear()


def _padded(
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the padded sequences, and the length of each."""
    sizes = batch_sizes.tolist()
    width, steps = sizes[0], torch.split(data, sizes)
    rest = (0, 0) * (data.dim() - 1)
    rows = [nn.functional.pad(s, (*rest, 0, width - len(s)), value=padding_value) for s in steps]
    rows += [torch.full_like(rows[0], padding_value)] * (total_length - len(sizes))
    lengths = (batch_sizes[:, None] > torch.arange(width)).sum(0)
    return torch.stack(rows, 1 if batch_first else 0), lengths
