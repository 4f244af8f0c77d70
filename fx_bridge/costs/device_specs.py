"""Speeds of device classes for roofline estimates, and the sources of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from fx_bridge.choices import DEVICE_TYPES, check_dtypes, checked_kernels
from solver import PartitionError
from solver.model.checks import check_choice, check_natural, only_given, remake
from solver.model.text import shown

_TIMES: Final = (
    "launch_overhead_ns",
    "backward_overhead_ns",
    "kernel_launch_ns",
    "attention_launch_ns",
)
LAUNCHES: Final = ("eager", "graph", "engine")
"""Ways to issue kernels: one by one by Python, together, as CUDA graphs and compiled code do, or by
an engine such as llama.cpp, which fuses the operators of torch."""
_ENGINE_NS: Final = 1_000
EAGER_NS: Final = 10_000
"""Time of a host to issue an operator by Python; a kernel of a backward pass takes twice that.

Measured on hosts of an H200 and an H100: 20 to 34 us for a kernel (docs/prediction.md)."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Rates of a device class, for the roofline.

    A kernel takes its launch, and then the longer of its arithmetic and its transfers between the
    device and its memory, each at the attained fraction of its peak rate.

    Parameters
    ----------
    name : str
        Of the device class, for people.
    flops_per_s : int or mapping of str to int
        Dense peak by dtype name, such as ``"bfloat16"``, or one number for all dtypes; a dtype that
        is not listed runs at the lowest listed rate.
    memory_bandwidth_bytes_per_s : int
        Peak rate of reading and writing the device's memory.
    launch_overhead_ns : int
        Time of the host to issue an operator: the least time of an operator that does anything.
    device_type : {"cpu", "cuda"}, optional
        Device whose kernels composite operators run. Defaults to that of the model, or to CUDA if
        that is the meta device.
    attention : str or sequence of str, optional
        Fused kernels of attention by priority; ``"math"`` for none. See
        :meth:`~fx_bridge.capture.graph.CapturedGraph.with_kernels`.
    backward_overhead_ns : int, optional
        As `launch_overhead_ns`, for a kernel of a backward pass; defaults to it.
    kernel_launch_ns, attention_launch_ns : int
        Time of the device to start a kernel, in addition to its work; of a call of fused attention
        the second, if given.
    compute_efficiency, attention_efficiency, bandwidth_efficiency : float
        Attained fraction of a peak rate, by products of matrices, by fused attention, and by
        reading and writing memory; between 0 and 1.
    source : str
        Origin of the numbers, in a few words.

    Raises
    ------
    PartitionError
        If a rate is not a positive integer, an efficiency is not above 0 and at most 1, or a kernel
        of attention is unknown.
    """

    name: str
    flops_per_s: int | Mapping[str, int]
    memory_bandwidth_bytes_per_s: int
    launch_overhead_ns: int = 0
    device_type: str | None = None
    attention: str | Sequence[str] | None = None
    backward_overhead_ns: int | None = None
    kernel_launch_ns: int = 0
    attention_launch_ns: int | None = None
    compute_efficiency: float = 1.0
    attention_efficiency: float | None = None
    bandwidth_efficiency: float = 1.0
    source: str = "given rates"
    __repr__ = only_given

    def __post_init__(self) -> None:
        where = f"device spec {self.name!r}: "
        if self.device_type is not None:
            check_choice(self.device_type, DEVICE_TYPES, f"{where}device_type")
        object.__setattr__(self, "attention", checked_kernels(self.attention))
        rates: dict[str, Any] = {"memory_bandwidth_bytes_per_s": self.memory_bandwidth_bytes_per_s}
        if isinstance(self.flops_per_s, Mapping):
            check_dtypes(self.flops_per_s, f"{where}flops_per_s")
            object.__setattr__(self, "flops_per_s", MappingProxyType(dict(self.flops_per_s)))
            rates.update({f"flops_per_s[{k!r}]": v for k, v in self.flops_per_s.items()})
            rates["the number of entries in flops_per_s"] = len(self.flops_per_s)
        else:
            rates["flops_per_s"] = self.flops_per_s
        for name in _TIMES:
            if getattr(self, name) is not None:
                check_natural(getattr(self, name), f"{where}{name}")
        for name, rate in rates.items():
            if isinstance(rate, bool) or not isinstance(rate, int) or rate <= 0:
                raise PartitionError(
                    f"{where}{name} is {shown(rate)}; write a positive whole number"
                )
        for name in ("compute_efficiency", "attention_efficiency", "bandwidth_efficiency"):
            share = getattr(self, name)
            is_number = isinstance(share, int | float) and not isinstance(share, bool)
            if share is not None and not (is_number and 0 < share <= 1):
                raise PartitionError(
                    f"{where}{name} is {shown(share)}; write a fraction of the peak rate, above 0 "
                    "and at most 1"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    def flops_per_s_of(self, dtype: str) -> int:
        """Return the peak rate for operands of `dtype`."""
        if isinstance(self.flops_per_s, Mapping):
            return self.flops_per_s.get(dtype, min(self.flops_per_s.values()))
        return self.flops_per_s

    def latency_ns(
        self,
        flops: int,
        moved_bytes: int,
        dtype: str,
        is_attention: bool = False,
        *,
        is_backward: bool = False,
    ) -> int:
        """Return the roofline time, rounded up, of a kernel in `dtype`; 0 for no work."""
        if not flops and not moved_bytes:
            return 0
        share, launch_ns = self.compute_efficiency, self.kernel_launch_ns
        if is_attention:
            share = self.attention_efficiency or share
            if self.attention_launch_ns is not None:
                launch_ns = self.attention_launch_ns
        flops_per_s = max(int(self.flops_per_s_of(dtype) * share), 1)
        bytes_per_s = max(int(self.memory_bandwidth_bytes_per_s * self.bandwidth_efficiency), 1)
        compute_ns = -(-flops * 1_000_000_000 // flops_per_s)
        move_ns = -(-moved_bytes * 1_000_000_000 // bytes_per_s)
        host_ns = self.launch_overhead_ns
        if is_backward and self.backward_overhead_ns is not None:
            host_ns = self.backward_overhead_ns
        return max(launch_ns + max(compute_ns, move_ns), host_ns)

    def launched(self, launch: str | int) -> DeviceSpec:
        """Return the spec with a launch of `LAUNCHES`, or of nanoseconds of the host a kernel."""
        if launch == "eager":
            host_ns = (EAGER_NS, 2 * EAGER_NS)
        elif launch == "graph":
            host_ns = (0, 0)
        elif launch == "engine":
            return replace(
                self,
                launch_overhead_ns=0,
                backward_overhead_ns=None,
                kernel_launch_ns=_ENGINE_NS,
                attention_launch_ns=None,
                source=f"{self.source}, and launches of an engine",
            )
        else:
            check_natural(launch, f"device spec {self.name!r}: launch")
            host_ns = (int(launch), int(launch))
        return replace(self, launch_overhead_ns=host_ns[0], backward_overhead_ns=host_ns[1])


def check_specs(specs: object) -> None:
    """Raise PartitionError unless `specs` is a mapping of device class to DeviceSpec."""
    if not isinstance(specs, Mapping):
        raise PartitionError(
            f"specs is a {type(specs).__name__}; give a mapping of device class to DeviceSpec"
        )
    for name, spec in specs.items():
        if not isinstance(spec, DeviceSpec):
            raise PartitionError(f"specs[{name!r}] is {shown(spec)}; write a fx_bridge.DeviceSpec")
