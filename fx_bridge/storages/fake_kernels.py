"""Sizes that torch's fake kernels report wrongly or not at all.

They matter for memory: the residual of a recurrent layer for its backward pass can be most of its
memory. Memory that a kernel allocates and releases itself shows in no fake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils import _pytree as pytree


class SizedFakeTensorMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A FakeTensorMode in which results have the storages that the real kernels make."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run `func` on fake tensors and correct its result."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        mend = _MENDS.get(func)
        if mend is None or result is NotImplemented:
            return result
        with self:
            return mend(func, args, kwargs or {}, result)


def _mend_embedding_bag(_: OpOverload, args: Any, kwargs: Any, result: Any) -> Any:
    # The CPU kernel fills one entry more than it returns.
    output, bags, *rest = result
    if bags.device.type == "cpu" and bags.numel():
        bags = bags.new_empty(bags.numel() + 1)[:-1]
    return type(result)((output, bags, *rest))


def _mend_mkldnn_rnn_layer(func: OpOverload, args: Any, kwargs: Any, result: Any) -> Any:
    # The size of oneDNN's residual is undocumented; the fake has none.
    *values, workspace = result
    if not torch.is_grad_enabled() or workspace.device.type != "cpu":
        return result
    leaves, structure = pytree.tree_flatten((args, kwargs))
    sizes = tuple(
        (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    )
    kept_bytes = _rnn_workspace_bytes(func, structure, sizes)
    return type(result)((*values, workspace.new_empty(kept_bytes)))


def _mend_mkldnn_rnn_layer_backward(_: OpOverload, args: Any, kwargs: Any, result: Any) -> Any:
    # The fake kernel returns one tensor as the gradient of both biases.
    first, second = result[3:5]
    if first is not None and first is second:
        result = type(result)((*result[:4], torch.empty_like(second), *result[5:]))
    return result


def _mend_efficient_backward(_: OpOverload, args: Any, kwargs: Any, result: Any) -> Any:
    # Rows of a bias gradient are padded to a multiple of 16; torch's cache of fakes drops that.
    *gradients, bias = result
    if bias is not None and bias.dim():
        size = bias.shape[-1]
        bias = bias.new_empty((*bias.shape[:-1], _whole(size, 16)))[..., :size]
    return type(result)((*gradients, bias))


@cache
def _rnn_workspace_bytes(
    func: OpOverload, structure: pytree.TreeSpec, leaves: tuple[Any, ...]
) -> int:
    """Return the size of the real kernel's residual, by running it on zeros."""
    with unset_fake_temporarily(), torch.enable_grad():
        real = [
            torch.zeros(leaf[0], dtype=leaf[1]) if isinstance(leaf, tuple) else leaf
            for leaf in leaves
        ]
        args, kwargs = pytree.tree_unflatten(real, structure)
        workspace = func(*args, **kwargs)[-1]
    return 0 if workspace is None else int(workspace.untyped_storage().nbytes())


def hidden_bytes(func: Any, args: Sequence[Any]) -> int:
    """Return the known bytes that the real kernel of `func` allocates besides its result.

    The backward passes of fused attention accumulate the gradient of the queries in float32. That
    of flash attention first makes gradients of grouped keys and values for every head
    (``flash_api.cpp``, ``kernel_backward.h`` of torch 2.13).
    """
    if func not in _FUSED_BACKWARD:
        return 0
    _, query, key, value = args[:4]
    batch, heads, rows, width = query.shape
    sums_bytes = 4 * batch * heads * _whole(rows, 128)
    if query.dtype is torch.float32:
        return int(sums_bytes)
    size_bytes = sums_bytes * (1 + (_whole(width, 32) if width <= 192 else 256))
    if func is _FUSED_BACKWARD[0] and heads > key.shape[1]:
        per_head = key.shape[2] * (key.shape[3] + value.shape[3]) * key.element_size()
        size_bytes += batch * heads * per_head
    return int(size_bytes)


def _whole(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


_FUSED_BACKWARD: Final = (
    torch.ops.aten._scaled_dot_product_flash_attention_backward.default,
    torch.ops.aten._scaled_dot_product_efficient_attention_backward.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default,
)
_MENDS: Final[Mapping[Any, Callable[..., Any]]] = {
    torch.ops.aten._embedding_bag.default: _mend_embedding_bag,
    torch.ops.aten._embedding_bag_forward_only.default: _mend_embedding_bag,
    torch.ops.aten._scaled_dot_product_efficient_attention_backward.default: (
        _mend_efficient_backward
    ),
    torch.ops.aten.mkldnn_rnn_layer.default: _mend_mkldnn_rnn_layer,
    torch.ops.aten.mkldnn_rnn_layer_backward.default: _mend_mkldnn_rnn_layer_backward,
}
