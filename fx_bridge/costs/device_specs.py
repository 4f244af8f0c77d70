"""Speeds of device classes for roofline estimates: presets from data sheets, or your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from fx_bridge.choices import CUDA_KERNELS, DEVICE_TYPES, check_dtypes, checked_kernels
from solver import DEFAULT_DEVICE_CLASS, PartitionError
from solver.model.checks import check_choice, check_natural, only_given, remake
from solver.model.text import shown

_TERA: Final = 10**12
_GIGA: Final = 10**9

# A kernel takes at least its launch: about 5 us for a CUDA kernel issued eagerly. No data sheet
# says so; give a DeviceSpec of your own where it matters.
_CUDA_LAUNCH_NS: Final = 5_000
# On Hopper torch asks cuDNN first, which saves the same bytes as flash attention. Here it is last,
# and so only takes calls that the others refuse.
_HOPPER: Final = (*CUDA_KERNELS, "cudnn")
_BEFORE_AMPERE: Final = ("efficient_sm70",)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Peak rates of a device class, for the roofline.

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
        Least time of an operator that does anything.
    device_type : {"cpu", "cuda"}, optional
        Device whose kernels composite operators run. Defaults to that of the model, or to CUDA if
        that is the meta device.
    attention : str or sequence of str, optional
        Fused kernels of attention by priority; ``"math"`` for none. See
        :meth:`~fx_bridge.capture.graph.CapturedGraph.with_kernels`.

    Raises
    ------
    PartitionError
        If a rate is not a positive integer, or a kernel of attention is unknown.
    """

    name: str
    flops_per_s: int | Mapping[str, int]
    memory_bandwidth_bytes_per_s: int
    launch_overhead_ns: int = 0
    device_type: str | None = None
    attention: str | Sequence[str] | None = None
    __repr__ = only_given

    def __post_init__(self) -> None:
        if self.device_type is not None:
            check_choice(self.device_type, DEVICE_TYPES, f"device spec {self.name!r}: device_type")
        object.__setattr__(self, "attention", checked_kernels(self.attention))
        rates: dict[str, Any] = {"memory_bandwidth_bytes_per_s": self.memory_bandwidth_bytes_per_s}
        if isinstance(self.flops_per_s, Mapping):
            check_dtypes(self.flops_per_s, f"device spec {self.name!r}: flops_per_s")
            object.__setattr__(self, "flops_per_s", MappingProxyType(dict(self.flops_per_s)))
            rates.update({f"flops_per_s[{k!r}]": v for k, v in self.flops_per_s.items()})
            rates["the number of entries in flops_per_s"] = len(self.flops_per_s)
        else:
            rates["flops_per_s"] = self.flops_per_s
        check_natural(self.launch_overhead_ns, f"device spec {self.name!r}: launch_overhead_ns")
        for name, rate in rates.items():
            if isinstance(rate, bool) or not isinstance(rate, int) or rate <= 0:
                raise PartitionError(
                    f"device spec {self.name!r}: {name} is {shown(rate)}; write a positive whole "
                    "number"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    def flops_per_s_of(self, dtype: str) -> int:
        """Return the peak rate for operands of `dtype`."""
        if isinstance(self.flops_per_s, Mapping):
            return self.flops_per_s.get(dtype, min(self.flops_per_s.values()))
        return self.flops_per_s

    def latency_ns(self, flops: int, moved_bytes: int, dtype: str) -> int:
        """Return the roofline time, rounded up, of arithmetic in `dtype`; 0 for no work."""
        if not flops and not moved_bytes:
            return 0
        compute_ns = -(-flops * 1_000_000_000 // self.flops_per_s_of(dtype))
        move_ns = -(-moved_bytes * 1_000_000_000 // self.memory_bandwidth_bytes_per_s)
        return max(compute_ns, move_ns, self.launch_overhead_ns)


def _gpu(
    name: str,
    bandwidth_gb_per_s: int,
    *,
    attention: tuple[str, ...] = CUDA_KERNELS,
    **tera_flops: float,
) -> DeviceSpec:
    rates = {dtype: round(rate * _TERA) for dtype, rate in tera_flops.items()}
    return DeviceSpec(name, rates, bandwidth_gb_per_s * _GIGA, _CUDA_LAUNCH_NS, "cuda", attention)


DEVICE_SPECS: Final[Mapping[str, DeviceSpec]] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            # No device in particular: round numbers near a data-centre GPU.
            DeviceSpec(
                DEFAULT_DEVICE_CLASS,
                {"float32": 50 * _TERA, "bfloat16": 200 * _TERA, "float16": 200 * _TERA},
                1000 * _GIGA,
            ),
            # Intel Xeon Platinum 8480+: 56 cores at 2.0 GHz; per cycle and core 64 float32
            # (two AVX-512 FMA units), 1024 bfloat16 and 2048 int8 operations (AMX); 8 channels
            # of DDR5-4800.
            DeviceSpec(
                "cpu",
                {
                    "float64": 3_584 * _GIGA,
                    "float32": 7_168 * _GIGA,
                    "bfloat16": 114_688 * _GIGA,
                    "int8": 229_376 * _GIGA,
                },
                307_200_000_000,
                device_type="cpu",
            ),
            # NVIDIA data sheets, dense rates: those marked "with sparsity" are halved. float32
            # without TF32, as torch multiplies by default.
            _gpu("h200-sxm", 4800, float64=34, float32=67, bfloat16=989, float16=989,
                 float8_e4m3fn=1979, float8_e5m2=1979, int8=1979, attention=_HOPPER),
            _gpu("h100-sxm", 3350, float64=34, float32=67, bfloat16=989, float16=989,
                 float8_e4m3fn=1979, float8_e5m2=1979, int8=1979, attention=_HOPPER),
            _gpu("a100-80gb", 2039, float64=9.7, float32=19.5, bfloat16=312, float16=312,
                 int8=624),
            _gpu("a100-40gb", 1555, float64=9.7, float32=19.5, bfloat16=312, float16=312,
                 int8=624),
            _gpu("l40s", 864, float32=91.6, bfloat16=362, float16=362, float8_e4m3fn=733,
                 float8_e5m2=733, int8=733),
            _gpu("l4", 300, float32=30.3, bfloat16=121, float16=121, float8_e4m3fn=242,
                 float8_e5m2=242, int8=242),
            _gpu("a10", 600, float32=31.2, bfloat16=125, float16=125, int8=250),
            _gpu("t4", 320, float32=8.1, float16=65, int8=130, attention=_BEFORE_AMPERE),
            _gpu("v100", 900, float64=7.8, float32=15.7, float16=125, attention=_BEFORE_AMPERE),
            # NVIDIA Ada and Ampere GA102 whitepapers; tensor rates with float32 accumulation.
            _gpu("rtx-4090", 1008, float32=82.6, bfloat16=165.2, float16=165.2,
                 float8_e4m3fn=330.3, float8_e5m2=330.3, int8=660.6),
            _gpu("rtx-3090", 936, float32=35.6, bfloat16=71, float16=71, int8=284),
        )
    }
)  # fmt: skip
"""Presets by name, to be used as ``Device.device_class``."""


def check_specs(specs: object) -> None:
    """Raise PartitionError unless `specs` is a mapping of device class to DeviceSpec."""
    if not isinstance(specs, Mapping):
        raise PartitionError(
            f"specs is a {type(specs).__name__}; give a mapping of device class to DeviceSpec"
        )
    for name, spec in specs.items():
        if not isinstance(spec, DeviceSpec):
            raise PartitionError(f"specs[{name!r}] is {shown(spec)}; write a fx_bridge.DeviceSpec")
