"""The attention kernel that runs a call, by the kernels of a device and the operands.

The meta device does not say which kernel runs ``scaled_dot_product_attention`` (``docs/memory.md``,
"Attention"). So this module decides, by the conditions of torch 2.13 (``sdp_utils.cpp``,
``sdp_utils_cpp.cpp``), and calls the kernel that would run on fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from fx_bridge.choices import MATH

_HALF: Final = (torch.float16, torch.bfloat16)
ATTENTION: Final = (
    functional.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of ``scaled_dot_product_attention``."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    def kernel(self, kernels: Sequence[str]) -> str:
        """Return the first of `kernels` that accepts this call, or ``"math"``."""
        if not _fits_a_fused_kernel(self):
            return MATH
        return next((name for name in kernels if _TAKES[name](self)), MATH)

    def run(self, kernel: str) -> torch.Tensor:
        """Return the result of `kernel`, as torch calls it."""
        aten = torch.ops.aten
        operands = self.query, self.key, self.value
        mask, dropout_p, is_causal = self._float_mask(), self.dropout_p, self.is_causal
        saves = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands)
        if kernel == "flash":
            return self._flash()
        if kernel == "cudnn":
            made = aten._scaled_dot_product_cudnn_attention(
                *operands, mask, saves, dropout_p, is_causal, False, scale=self.scale
            )
        elif kernel in ("efficient", "efficient_sm70"):
            made = aten._scaled_dot_product_efficient_attention(
                *operands, self._expanded(mask), saves, dropout_p, is_causal, scale=self.scale
            )
        elif kernel == "cpu":
            made = aten._scaled_dot_product_flash_attention_for_cpu(
                *operands, dropout_p, is_causal, attn_mask=mask, scale=self.scale
            )
        else:
            made = aten._scaled_dot_product_attention_math(
                *operands, mask, dropout_p, is_causal, None,
                scale=self.scale, enable_gqa=self.enable_gqa,
            )  # fmt: skip
        result: torch.Tensor = made[0]
        return result

    def _flash(self) -> torch.Tensor:
        size = self.query.shape[-1]
        operands = [self.query, self.key, self.value]
        if size % 8:
            operands = [functional.pad(tensor, (0, -size % 8)) for tensor in operands]
        scale = size**-0.5 if self.scale is None else self.scale
        result: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
            *operands, self.dropout_p, self.is_causal, False, scale=scale
        )[0]
        return result[..., :size] if size % 8 else result

    def _float_mask(self) -> torch.Tensor | None:
        mask = self.attn_mask
        if mask is None or mask.dtype is not torch.bool:
            return mask
        return torch.where(mask, 0.0, torch.full((), float("-inf"), dtype=self.query.dtype))

    def _expanded(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        """Return a mask of the size of the scores, with rows padded to a multiple of 8."""
        if mask is None:
            return None
        if any(stride % 8 for stride in mask.stride()[:-1]):
            size = mask.shape[-1]
            mask = functional.pad(mask, (0, -size % 8))[..., :size]
        return mask.expand(*self.query.shape[:3], self.key.shape[2])


def _fits_a_fused_kernel(call: AttentionCall) -> bool:
    operands = call.query, call.key, call.value
    return (
        all(tensor.dim() == 4 and tensor.layout is torch.strided for tensor in operands)
        and len({tensor.dtype for tensor in operands}) == 1
        and len({tensor.shape[0] for tensor in operands}) == 1
        and 0 not in (call.query.shape[-2], call.key.shape[-2])
        and all(tensor.stride(-1) == 1 for tensor in operands)
    )


def _heads_agree(call: AttentionCall, *, grouped: bool) -> bool:
    queries, keys, values = (t.shape[1] for t in (call.query, call.key, call.value))
    if call.enable_gqa and grouped:
        return keys == values and keys > 0 and queries % keys == 0
    return queries == keys == values


def _one_head_size(call: AttentionCall) -> bool:
    return call.query.shape[-1] == call.key.shape[-1] == call.value.shape[-1]


def _plain_mask(call: AttentionCall) -> bool:
    """Return True if there is no mask, or one without gradient that fits in every dimension."""
    mask = call.attn_mask
    if mask is None:
        return True
    scores = (*call.query.shape[:3], call.key.shape[2])[-mask.dim() :]
    return (
        not mask.requires_grad
        and mask.dim() in (2, 4)
        and all(size in (1, whole) for size, whole in zip(mask.shape, scores, strict=True))
    )


def _mask_rows_are_dense(call: AttentionCall) -> bool:
    return call.attn_mask is None or call.attn_mask.stride(-1) == 1


def _takes_flash(call: AttentionCall) -> bool:
    return (
        call.query.dtype in _HALF
        and call.attn_mask is None
        and _one_head_size(call)
        and call.query.shape[-1] <= 256
        and not (call.is_causal and call.query.shape[-2] != call.key.shape[-2])
        and _heads_agree(call, grouped=True)
    )


def _takes_efficient(call: AttentionCall) -> bool:
    multiple = 8 if call.query.dtype in _HALF else 4
    width, value_width = call.query.shape[-1], call.value.shape[-1]
    return (
        call.query.dtype in (*_HALF, torch.float32)
        and width == call.key.shape[-1]
        and not (width % multiple or value_width % multiple)
        and _mask_rows_are_dense(call)
        and _heads_agree(call, grouped=False)
    )


def _takes_efficient_sm70(call: AttentionCall) -> bool:
    return call.query.dtype is not torch.bfloat16 and _takes_efficient(call)


def _takes_cudnn(call: AttentionCall) -> bool:
    widths = call.query.shape[-1], call.value.shape[-1]
    return (
        call.query.dtype in _HALF
        and _plain_mask(call)
        and _mask_rows_are_dense(call)
        and all(width <= 128 and width % 8 == 0 for width in widths)
        and call.key.shape[-2] > 1
        and not (call.dropout_p and call.query.shape[-2] == 1)
        and float(call.dropout_p * 16).is_integer()
        and _heads_agree(call, grouped=True)
    )


def _takes_cpu(call: AttentionCall) -> bool:
    return (
        call.query.dtype in (*_HALF, torch.float32, torch.float64)
        and not call.dropout_p
        and _plain_mask(call)
        and _one_head_size(call)
        and _heads_agree(call, grouped=True)
    )


_TAKES: Final[Mapping[str, Callable[[AttentionCall], bool]]] = {
    "flash": _takes_flash,
    "efficient": _takes_efficient,
    "efficient_sm70": _takes_efficient_sm70,
    "cudnn": _takes_cudnn,
    "cpu": _takes_cpu,
}
