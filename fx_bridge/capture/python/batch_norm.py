"""Batch norm with ``momentum=None``, which reads its count of batches as a number.

The number changes with every call, so no operator of a graph can hold it. Here a module is the
operator: it takes the count as a tensor, and reads it when it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from fx_bridge.capture.python.autograd_functions import record_module


class CumulativeBatchNorm(nn.Module):
    """Normalises a batch, and updates averages of its statistics over all batches."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(
        self,
        x: torch.Tensor,
        mean: torch.Tensor,
        var: torch.Tensor,
        batches: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Count the batch, as torch does, and normalise it."""
        batches.add_(1)
        # Without values any number will do: it decides no size.
        unknown = isinstance(batches, FakeTensor) or batches.device.type == "meta"
        momentum = 1.0 if unknown else 1.0 / float(batches)
        return functional.batch_norm(x, mean, var, weight, bias, True, momentum, self.eps)

    def extra_repr(self) -> str:
        """Return text that distinguishes calls."""
        return f"eps={self.eps}"


@contextlib.contextmanager
def cumulative_batch_norms() -> Iterator[None]:
    """Record each call of such batch norms in the block as one operator."""
    forward = _BatchNorm.forward

    def recorded(self: Any, x: torch.Tensor) -> torch.Tensor:
        counts = self.momentum is None and self.training and self.track_running_stats
        if not counts or self.num_batches_tracked is None or get_proxy_mode() is None:
            return forward(self, x)
        self._check_input_dim(x)
        statistics = self.running_mean, self.running_var, self.num_batches_tracked
        return record_module(  # type: ignore[no-any-return]
            CumulativeBatchNorm(self.eps), (x, *statistics, self.weight, self.bias)
        )

    with mock.patch.object(_BatchNorm, "forward", recorded):
        yield
