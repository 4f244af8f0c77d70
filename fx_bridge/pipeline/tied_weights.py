"""Sums of gradients of weights that several ranks hold, which keep all copies equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


class GradientSum:
    """Sum the gradients of shared parameters over the ranks that hold them.

    `parameters` are those of this rank, each with all ranks of `group` that hold a copy, in
    ascending order. All ranks list the parameters in one order. The first rank that holds a
    parameter adds the gradients in rank order and sends the sum to the others, so that equal copies
    stay equal. A parameter without a gradient on any rank has none afterwards. Messages between
    pairs of ranks need no process groups of their own, which all ranks would have to create
    together.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[nn.Parameter, tuple[int, ...]]],
        rank: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._parameters = tuple(parameters)
        self._rank = rank
        self._group = group
        self._before: list[torch.Tensor | None] = []

    def set_aside(self) -> None:
        """Remove the gradients of earlier steps, which are sums already."""
        self._before = [parameter.grad for parameter, _ in self._parameters]
        for parameter, _ in self._parameters:
            parameter.grad = None

    def add_up(self) -> None:
        """Sum the gradients of this step over the ranks, and add those set aside."""
        for (parameter, ranks), before in zip(self._parameters, self._before, strict=True):
            present = torch.zeros(1, dtype=torch.int32, device=parameter.device)
            present += parameter.grad is not None
            self._reduce(present, ranks)
            if int(present):
                gradient = parameter.grad
                gradient = torch.zeros_like(parameter) if gradient is None else gradient
                gradient = gradient.to_dense() if gradient.is_sparse else gradient
                parameter.grad = gradient.contiguous()
                self._reduce(parameter.grad, ranks)
            if before is not None:
                parameter.grad = before if parameter.grad is None else before + parameter.grad
        self._before = []

    def _reduce(self, tensor: torch.Tensor, ranks: tuple[int, ...]) -> None:
        """Replace `tensor` by its sum over `ranks`."""
        first, *others = ranks
        if self._rank != first:
            dist.send(tensor, group_dst=first, group=self._group)
            dist.recv(tensor, group_src=first, group=self._group)
            return
        part = torch.empty_like(tensor)
        for rank in others:
            dist.recv(part, group_src=rank, group=self._group)
            tensor += part
        for rank in others:
            dist.send(tensor, group_dst=rank, group=self._group)
