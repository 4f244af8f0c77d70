"""Composite operators run as on a device, on fakes of another device.

Torch decomposes some operators on the CPU and the meta device for which CUDA has a kernel, which
saves and allocates less. Such calls are replaced by the kernel, or by one of the same sizes, so
that the counted bytes are those of the device. ``docs/memory.md`` lists the operators examined.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fx_bridge.choices import CPU_KERNELS, CUDA_KERNELS, DEVICE_TYPES
from fx_bridge.storages.attention import ATTENTION, AttentionCall
from solver.model.checks import check_choice


class DeviceKernels(TorchFunctionMode):
    """Runs composite operators of a replay by the kernels that a device would choose.

    The device type is by default that of the tensors; those on the meta device count as on CUDA.
    `attention` has the fused kernels that attention may use, by priority; by default those of the
    device.
    """

    def __init__(
        self, device_type: str | None = None, attention: tuple[str, ...] | None = None
    ) -> None:
        super().__init__()
        if device_type is not None:
            check_choice(device_type, DEVICE_TYPES, "device_type")
        self.device_type = device_type
        self.attention = attention

    def on(self, module: nn.Module) -> tuple[str | None, tuple[str, ...] | None]:
        """Return device type and attention kernels, with the defaults of a module on meta."""
        tensors = itertools.chain(module.parameters(), module.buffers())
        if {tensor.device.type for tensor in tensors} != {"meta"}:
            return self.device_type, self.attention
        return self.on_meta

    @property
    def on_meta(self) -> tuple[str, tuple[str, ...]]:
        """Device type and attention kernels for tensors on the meta device."""
        device_type = self.device_type or "cuda"
        own = CPU_KERNELS if device_type == "cpu" else CUDA_KERNELS
        return device_type, own if self.attention is None else self.attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, or the kernel that the device would run instead."""
        kwargs = kwargs or {}
        if func in ATTENTION:
            call = AttentionCall(*args, **kwargs)
            kernel = self.choose(call)
            if self.attention is None and self._runs_on(call.query) == call.query.device.type:
                return func(*args, **kwargs)
            return call.run(kernel)
        if self.fuses(func, args, kwargs):
            result = _FUSED_ON_CUDA[func](*args, **kwargs)
            if result is not None:
                return result
        if isinstance(func, FunctionType) and func.__module__ == functional.__name__:
            # Such functions first dispatch themselves to modes; their own calls count too.
            with self:
                return _body(func)(*args, **kwargs)
        return func(*args, **kwargs)

    def choose(self, call: AttentionCall) -> str:
        """Return the kernel that runs an attention."""
        if self.attention is not None:
            return call.kernel(self.attention)
        cpu = self._runs_on(call.query) == "cpu"
        return call.kernel(CPU_KERNELS if cpu else CUDA_KERNELS)

    def fuses(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return True if `func` may be one kernel on the device, but not on that of its tensors."""
        # Some callables cannot be hashed.
        if not isinstance(getattr(func, "__name__", None), str) or func not in _FUSED_ON_CUDA:
            return False
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        return bool(tensors) and not tensors[0].is_cuda and self._runs_on(tensors[0]) == "cuda"

    def _runs_on(self, tensor: torch.Tensor) -> str:
        actual = tensor.device.type
        return self.device_type or ("cuda" if actual == "meta" else actual)


@functools.cache
def _body(func: FunctionType) -> Callable[..., Any]:
    """Return `func` without its dispatch to function modes."""
    checks = (name for name in func.__globals__ if name.startswith("has_torch_function"))
    scope = {**func.__globals__, **dict.fromkeys(checks, lambda *_: False)}
    body = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


# -- kernels of CUDA for operators that other devices decompose; None where CUDA does too ----


def _dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor | None:
    # CUDA keeps the mask as a byte an element, other devices as floating-point numbers.
    if not training or inplace or not 0 < p < 1 or not input.numel():
        return None
    result: torch.Tensor = torch.ops.aten.native_dropout(input, p, True)[0]
    return result


def _rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> torch.Tensor:
    # One kernel; unlike that of layer_norm it keeps no mean (four bytes a row).
    result: torch.Tensor = torch.ops.aten.native_layer_norm(
        input, list(normalized_shape), weight, None, 1e-5
    )[0]
    return result


def _softmax_of(name: str) -> Callable[..., torch.Tensor | None]:
    def softmax(
        input: torch.Tensor, dim: int, dtype: torch.dtype | None = None
    ) -> torch.Tensor | None:
        # No float32 copy of the operand.
        if input.dtype is not torch.float16 or dtype is not torch.float32:
            return None
        result: torch.Tensor = getattr(torch.ops.aten, name)(input, dim, True)
        return result

    return softmax


_softmax, _log_softmax = _softmax_of("_softmax"), _softmax_of("_log_softmax")
_FUSED_ON_CUDA: Final[Mapping[Any, Callable[..., torch.Tensor | None]]] = {
    functional.dropout: _dropout,
    torch.ops.aten.dropout.default: _dropout,
    functional.rms_norm: _rms_norm,
    torch.rms_norm: _rms_norm,
    torch.ops.aten.rms_norm.default: _rms_norm,
    torch.softmax: _softmax,
    torch.Tensor.softmax: _softmax,
    torch.ops.aten.softmax.int: _softmax,
    torch.log_softmax: _log_softmax,
    torch.Tensor.log_softmax: _log_softmax,
    torch.ops.aten.log_softmax.int: _log_softmax,
}
