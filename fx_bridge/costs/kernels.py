"""The kernels of operators, counted one by one as they run on fake tensors."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.choices import MATH
from fx_bridge.costs.operators import ALLOCATIONS, compute_dtype, recurrent_flops
from fx_bridge.storages.attention import ATTENTION, AttentionCall
from fx_bridge.storages.device_kernels import DeviceKernels
from fx_bridge.storages.fake_kernels import hidden_bytes
from fx_bridge.storages.replay import Replay, value_bytes
from fx_bridge.storages.tensor_subclasses import any_wrapper, tensors_in


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: floating-point operations in `dtype`, if any, and bytes read and written."""

    flops: int
    moved_bytes: int
    dtype: str
    is_attention: bool = False


@dataclass(slots=True)
class Count:
    """Kernels that ran, and the bytes of their storages: live now, and at the peak."""

    kernels: list[Kernel] = field(default_factory=list)
    live_bytes: int = 0
    peak_bytes: int = 0


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts kernels, and the bytes of the storages that they make, while those live."""

    # Read by HigherOrderOperator.dispatch.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Count | None = None
        self._known: dict[int, Any] = {}

    def start(self) -> Count:
        """Begin a new count, without the storages alive already."""
        self.count = Count()
        self._known.clear()
        return self.count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any_wrapper(types):
            return NotImplemented
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.count is None or not isinstance(func, OpOverload):
            return result
        given = {t.untyped_storage()._cdata for t in tensors_in((args, kwargs))}
        made = [t for t in tensors_in(result) if t.untyped_storage()._cdata not in given]
        written = func._schema.is_mutable
        for tensor in made:
            self._note(tensor)
        own_bytes = self.count.live_bytes + hidden_bytes(func, args)
        self.count.peak_bytes = max(self.count.peak_bytes, own_bytes)
        if (made or written) and func._schema.name.rpartition("::")[2] not in ALLOCATIONS:
            self.count.kernels.append(_kernel(func, args, kwargs, result, made))
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        storage, count = tensor.untyped_storage(), self.count
        assert count is not None
        if storage._cdata in self._known:
            return
        size_bytes = int(storage.nbytes())
        count.live_bytes += size_bytes
        count.peak_bytes = max(count.peak_bytes, count.live_bytes)
        release = functools.partial(self._release, storage._cdata, count, size_bytes)
        self._known[storage._cdata] = weakref.ref(storage, release)

    def _release(self, address: int, count: Count, size_bytes: int, _: object = None) -> None:
        count.live_bytes -= size_bytes
        if count is self.count:
            self._known.pop(address, None)


def _kernel(
    func: OpOverload, args: Any, kwargs: Any, result: Any, made: Sequence[torch.Tensor]
) -> Kernel:
    read = {id(t): min(value_bytes(t), storage_nbytes(t)) for t in tensors_in((args, kwargs))}
    moved_bytes = sum(read.values()) + sum(value_bytes(tensor) for tensor in made)
    if func._schema.is_mutable:
        # All such operators change their first argument, by convention.
        moved_bytes += sum(min(value_bytes(t), storage_nbytes(t)) for t in tensors_in(args[:1]))
    formula = _FORMULAS.get(func._overloadpacket)
    flops = int(formula(*args, **kwargs, out_val=result)) if formula else 0
    dtype = compute_dtype([*tensors_in((args, kwargs)), *made])
    return Kernel(flops, int(moved_bytes), dtype, "attention" in func._schema.name)


def storage_nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the storage of `tensor`."""
    return int(tensor.untyped_storage().nbytes())


def _attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any,
    **__: Any,
) -> int:  # fmt: skip
    shapes = gradient.shape, query.shape, key.shape, value.shape
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _recurrent_backward(sequence: torch.Tensor, *rest: Any, **_: Any) -> int:
    # Each forward product has two backward: for its operand and for its weight.
    return 2 * recurrent_flops(sequence.shape, *(t.shape for t in rest[:2]))


_FORMULAS: Final[Mapping[Any, Any]] = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten.mkldnn_rnn_layer_backward: _recurrent_backward,
}


# -- decomposed attention ------------------------------------------------------------------


def math_attention_kernels(captured: CapturedGraph) -> dict[str, tuple[Kernel, ...]]:
    """Return the kernels of decomposed attention, by operator, where no fused kernel runs it.

    Scores are written and read again then, by a kernel each.
    """
    may_attend = (
        node.target in ATTENTION
        or node.op == "call_module"
        or isinstance(node.target, HigherOrderOperator)
        for node in captured.operators
    )
    if not any(may_attend):
        return {}
    replay, kinds = _MathReplay(captured), captured.storage_table.kinds
    replay.replay(kinds)
    return kinds.for_all(replay.ran)


class _NotingMath(DeviceKernels):
    used_math = False

    def choose(self, call: AttentionCall) -> str:
        kernel = super().choose(call)
        self.used_math |= kernel == MATH
        return kernel


class _MathReplay(Replay):
    def __init__(self, captured: CapturedGraph) -> None:
        self._noting = _NotingMath(captured.device_type, captured.attention)
        super().__init__(captured.module, kernels=self._noting)
        self._counting = Counting()
        self.modes = (self._counting,)
        self.ran: dict[str, tuple[Kernel, ...]] = {}

    def observe(self, node: fx.Node) -> Any:
        self._noting.used_math = False
        self._count = self._counting.start()
        value = super().observe(node)
        if self.notes is not None and node.op in COMPUTE_OPS:
            self.ran[node.name] = self.notes
        return value

    def take_notes(self) -> tuple[Kernel, ...] | None:
        return tuple(self._count.kernels) if self._noting.used_math else None
