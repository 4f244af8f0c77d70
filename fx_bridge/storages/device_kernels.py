"""Composite operators as a device runs them, on fakes that are on another device.

What torch takes apart on the CPU and the meta device CUDA often has a kernel for, which keeps and
allocates less. Such calls are replaced by the kernel, or by one of the same sizes, so that what is
counted is what the device would do. ``docs/memory.md`` lists what was looked at.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final, Protocol, Self

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fx_bridge.choices import CPU_KERNELS, CUDA_KERNELS, DEVICE_TYPES
from fx_bridge.storages.attention import ATTENTION, AttentionCall
from solver.model.checks import check_choice


class KernelChoice(Protocol):
    """What of a captured graph says by which kernels it is costed."""

    @property
    def device_type(self) -> str | None:
        """``"cpu"``, ``"cuda"``, or that of the device that the model is on."""
        ...

    @property
    def attention(self) -> tuple[str, ...] | None:
        """The kernels of attention, or those of the device."""
        ...


class DeviceKernels(TorchFunctionMode):
    """Runs composite operators of a replay by the kernels that a device would choose.

    Parameters
    ----------
    device_type : {"cpu", "cuda"}, optional
        Without it that of the tensors; tensors on the meta device are taken to be on CUDA.
    attention : tuple of str, optional
        Fused kernels that attention may use, in the order in which they are asked. Without it
        those of the device.
    """

    def __init__(
        self, device_type: str | None = None, attention: tuple[str, ...] | None = None
    ) -> None:
        super().__init__()
        if device_type is not None:
            check_choice(device_type, DEVICE_TYPES, "device_type")
        self.device_type = device_type
        self.attention = attention

    @classmethod
    def of(cls, captured: KernelChoice) -> Self:
        """Return the kernels that `captured` is costed with."""
        return cls(captured.device_type, captured.attention)

    def on(self, module: nn.Module) -> tuple[str | None, tuple[str, ...] | None]:
        """Return device type and attention, with the defaults of a module that is on meta."""
        tensors = itertools.chain(module.parameters(), module.buffers())
        if {tensor.device.type for tensor in tensors} != {"meta"}:
            return self.device_type, self.attention
        device_type = self.device_type or "cuda"
        own = CPU_KERNELS if device_type == "cpu" else CUDA_KERNELS
        return device_type, own if self.attention is None else self.attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, or what the device would run instead."""
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
            # Such functions hand themselves to modes first; what they call is to be seen too.
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
        """Return whether `func` may be one kernel on the device alone, not on its tensors'."""
        # Not everything that is called can be hashed.
        if not isinstance(getattr(func, "__name__", None), str) or func not in _FUSED_ON_CUDA:
            return False
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        return bool(tensors) and not tensors[0].is_cuda and self._runs_on(tensors[0]) == "cuda"

    def _runs_on(self, tensor: torch.Tensor) -> str:
        actual = tensor.device.type
        return self.device_type or ("cuda" if actual == "meta" else actual)


@functools.cache
def _body(func: FunctionType) -> Callable[..., Any]:
    """Return `func` without its question whether a mode takes it."""
    deaf = {name: _never for name in func.__globals__ if name.startswith("has_torch_function")}
    scope = {**func.__globals__, **deaf}
    body = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _never(*_: Any) -> bool:
    return False


# -- kernels that CUDA has, and what is taken apart elsewhere; None where it is not ----------


def _dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor | None:
    # The mask is kept in a byte an element, elsewhere as numbers.
    if not training or inplace or not 0 < p < 1 or not input.numel():
        return None
    result: torch.Tensor = torch.ops.aten.native_dropout(input, p, True)[0]
    return result


def _rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> torch.Tensor:
    # One kernel; that of layer_norm keeps a mean, four bytes a row, that it does not.
    result: torch.Tensor = torch.ops.aten.native_layer_norm(
        input, list(normalized_shape), weight, None, 1e-5
    )[0]
    return result


def _softmax_of(name: str) -> Callable[..., torch.Tensor | None]:
    def softmax(
        input: torch.Tensor, dim: int, dtype: torch.dtype | None = None
    ) -> torch.Tensor | None:
        # No float32 copy of what is read.
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
