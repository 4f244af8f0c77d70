"""Tensors kept from a forward pass for its backward pass, with checks that they are unmodified.

Autograd compares the version of each saved tensor with that of the forward pass, but not behind
``saved_tensors_hooks`` (torch/csrc/autograd/saved_variable.cpp). So versions are compared here, of
saved tensors and of the inputs of recomputed operators.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx_bridge.storages.tensor_subclasses import tensor_leaves


class SavedTensor:
    """A tensor that autograd saves for an operator, with its version."""

    __slots__ = ("_operator", "_tensor", "_version")

    def __init__(self, tensor: torch.Tensor, operator: str) -> None:
        # Detached: an operator's own result, saved by it, would hold itself.
        self._tensor, self._operator = tensor.detach(), operator
        self._version = self._tensor._version

    def tensor(self) -> torch.Tensor:
        """Return the tensor; raise the error of autograd if it has been modified."""
        if self._tensor._version != self._version:
            what = f"{_described(self._tensor)}, which {self._operator!r} saved"
            raise written_since(what, self._tensor._version, self._version)
        return self._tensor


class KeptValue:
    """An input of recomputed operators, with the versions of its tensors."""

    __slots__ = ("_versions", "value")

    def __init__(self, value: Any) -> None:
        self.value = detached(value)
        if any(tensor.is_inference() for tensor in tensor_leaves(value)):
            # Inference tensors have no version to detect a write.
            self.value = pytree.tree_map_only(torch.Tensor, _outside_inference, self.value)
        self._versions: list[int | None] = [t._version for t in tensor_leaves(self.value)]

    def accept_writes(self) -> None:
        """Stop comparing modified tensors: their writer runs again on a copy."""
        pairs = zip(tensor_leaves(self.value), self._versions, strict=True)
        self._versions = [version if t._version == version else None for t, version in pairs]

    def check(self, name: str) -> None:
        """Raise the error of autograd for the value `name` if a tensor has been modified."""
        for tensor, version in zip(tensor_leaves(self.value), self._versions, strict=True):
            if version is not None and tensor._version != version:
                what = f"{name!r}, {_described(tensor)}, which operators read that run again"
                raise written_since(what, tensor._version, version)


def _outside_inference(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_inference():
        return tensor
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def detached(value: Any, requires_grad: Sequence[bool] | None = None) -> Any:
    """Return a value detached from autograd's graph, with the same or the given flags."""
    if isinstance(value, torch.Tensor):
        flag = value.requires_grad if requires_grad is None else requires_grad[0]
        return value.detach().requires_grad_(flag)
    flags = None if requires_grad is None else iter(requires_grad)

    def one(tensor: torch.Tensor) -> torch.Tensor:
        flag = tensor.requires_grad if flags is None else next(flags)
        return tensor.detach().requires_grad_(flag)

    return pytree.tree_map_only(torch.Tensor, one, value)


def version_counter(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without memory that shares the version of `tensor`."""
    counter = tensor.detach()
    counter.data = _empty(tensor.device)
    return counter


@functools.cache
def _empty(device: torch.device) -> torch.Tensor:
    return torch.empty(0, device=device)


def _described(tensor: torch.Tensor) -> str:
    return f"[{tensor.type()} {list(tensor.shape)}]"


def written_since(what: str, version: int, expected: int) -> RuntimeError:
    """Return the error of autograd for a modified tensor, of its type and with its words."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: {what}, is at version {version}; expected version {expected} instead; "
        "write into it after the backward pass, or leave its readers out of recomputed"
    )
