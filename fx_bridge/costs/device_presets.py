"""Presets of device classes: data sheets, with efficiencies that were measured or borrowed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fx_bridge.choices import CUDA_KERNELS
from fx_bridge.costs.device_specs import EAGER_NS, DeviceSpec
from solver import DEFAULT_DEVICE_CLASS

_TERA: Final = 10**12
_MEGA: Final = 10**6

# On Hopper torch asks cuDNN first, which saves the same bytes as flash attention. Here it is last,
# and so only takes calls that the others refuse.
_HOPPER: Final = (*CUDA_KERNELS, "cudnn")
_BEFORE_AMPERE: Final = ("efficient_sm70",)


def _gpu(
    name: str,
    bandwidth_gb_per_s: float,
    tera_flops: Mapping[str, float],
    fitted: tuple[int, int, float, float, float],
    source: str,
    attention: tuple[str, ...] = CUDA_KERNELS,
) -> DeviceSpec:
    """Return a class whose kernels are issued one by one by Python.

    `fitted` are the nanoseconds to launch a kernel and a call of attention, and the efficiencies of
    products, of attention, and of memory.
    """
    launch_ns, attention_ns, compute, fused, bandwidth = fitted
    return DeviceSpec(
        name,
        {dtype: round(rate * _TERA) for dtype, rate in tera_flops.items()},
        round(bandwidth_gb_per_s * 1000) * _MEGA,
        EAGER_NS,
        "cuda",
        attention,
        2 * EAGER_NS,
        launch_ns,
        attention_ns,
        compute,
        fused,
        bandwidth,
        source,
    )


def _rates(half: float, float32: float, **others: float) -> dict[str, float]:
    """Return dense rates by dtype; the two halves are alike."""
    return {**others, "float32": float32, "bfloat16": half, "float16": half}


def _float8(rate: float) -> dict[str, float]:
    return {"float8_e4m3fn": rate, "float8_e5m2": rate}


def _geforce(
    float32: float, half_ratio: float, int8_ratio: float, **others: float
) -> dict[str, float]:
    """Return rates of a card whose tensor cores add up in float32, as torch asks."""
    return _rates(half_ratio * float32, float32, int8=int8_ratio * float32, **others)


def _host(name: str, bandwidth_gb_per_s: float) -> DeviceSpec:
    """Return a desktop or laptop of eight cores at 4 GHz, with two units of AVX2 each."""
    rates = {"float64": 512 * 10**9, "float32": 1_024 * 10**9}
    return DeviceSpec(
        name,
        rates,
        round(bandwidth_gb_per_s * 1000) * _MEGA,
        device_type="cpu",
        compute_efficiency=0.5,
        bandwidth_efficiency=0.8,
        source="the rate of two channels, with efficiencies that are usual",
    )


_KERNELS: Final = "the data sheet, with efficiencies fitted to measured bf16 kernels"
_TENSOR: Final = "the data sheet, with efficiencies borrowed from "
_APPLE: Final = "the data sheet, with efficiencies fitted to llama.cpp in float16"
_GUESSED: Final = "the data sheet, with efficiencies that are usual, not measured"
_LLAMA: Final = (
    "the data sheet, with bandwidth fitted to llama.cpp in float16, and other efficiencies of "
)

DEVICE_SPECS: Final[Mapping[str, DeviceSpec]] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            # No device in particular: round numbers near a data-centre GPU.
            DeviceSpec(
                DEFAULT_DEVICE_CLASS,
                {"float32": 50 * _TERA, "bfloat16": 200 * _TERA, "float16": 200 * _TERA},
                10**12,
                source="round numbers of no device",
            ),
            # Intel Xeon Platinum 8480+: 56 cores at 2.0 GHz; per cycle and core 64 float32
            # (two AVX-512 FMA units), 1024 bfloat16 and 2048 int8 operations (AMX); 8 channels
            # of DDR5-4800.
            DeviceSpec(
                "cpu",
                {
                    "float64": 3_584 * 10**9,
                    "float32": 7_168 * 10**9,
                    "bfloat16": 114_688 * 10**9,
                    "int8": 229_376 * 10**9,
                },
                307_200 * _MEGA,
                device_type="cpu",
                source="the data sheet of a server, Xeon 8480+",
            ),
            # NVIDIA data sheets, dense rates: those marked "with sparsity" are halved. float32
            # without TF32, as torch multiplies by default.
            _gpu("b200", 8000, _rates(2250, 75, float64=37, int8=4500, **_float8(4500)),
                 (2000, 12_000, 0.70, 0.40, 0.70), _KERNELS, _HOPPER),
            _gpu("h200-sxm", 4800, _rates(989, 67, float64=34, int8=1979, **_float8(1979)),
                 (3000, 12_000, 0.78, 0.50, 0.80), _KERNELS, _HOPPER),
            _gpu("h100-sxm", 3350, _rates(989, 67, float64=34, int8=1979, **_float8(1979)),
                 (3000, 12_000, 0.80, 0.50, 0.84), _KERNELS, _HOPPER),
            _gpu("a100-80gb", 2039, _rates(312, 19.5, float64=9.7, int8=624),
                 (6000, 14_000, 0.76, 0.60, 0.72), _KERNELS),
            _gpu("a100-40gb", 1555, _rates(312, 19.5, float64=9.7, int8=624),
                 (6000, 14_000, 0.76, 0.60, 0.72), _TENSOR + "a100-80gb"),
            _gpu("l40s", 864, _rates(362, 91.6, int8=733, **_float8(733)),
                 (2000, 8_000, 0.62, 0.45, 0.82), _KERNELS),
            _gpu("l4", 300, _rates(121, 30.3, int8=242, **_float8(242)),
                 (2000, 8_000, 0.62, 0.45, 0.82), _TENSOR + "l40s"),
            _gpu("a10", 600, _rates(125, 31.2, int8=250),
                 (6000, 14_000, 0.76, 0.60, 0.72), _TENSOR + "a100-80gb"),
            _gpu("t4", 320, {"float32": 8.1, "float16": 65, "int8": 130},
                 (6000, 14_000, 0.76, 0.60, 0.72), _TENSOR + "a100-80gb", _BEFORE_AMPERE),
            _gpu("v100", 900, {"float64": 7.8, "float32": 15.7, "float16": 125},
                 (6000, 14_000, 0.76, 0.60, 0.72), _TENSOR + "a100-80gb", _BEFORE_AMPERE),
            # NVIDIA Blackwell, Ada and Ampere GA102 whitepapers.
            _gpu("rtx-5090", 1792, _geforce(104.8, 2, 8, **_float8(419)),
                 (3000, 12_000, 0.70, 0.40, 0.78), _TENSOR + "b200"),
            _gpu("rtx-5080", 960, _geforce(56.3, 2, 8, **_float8(225)),
                 (3000, 12_000, 0.70, 0.40, 0.78), _TENSOR + "b200"),
            _gpu("rtx-4090", 1008, _rates(165.2, 82.6, int8=660.6, **_float8(330.3)),
                 (2000, 8_000, 0.62, 0.45, 0.87), _LLAMA + "l40s"),
            _gpu("rtx-4080", 716.8, _geforce(48.7, 2, 8, **_float8(194.9)),
                 (2000, 8_000, 0.62, 0.45, 0.91), _LLAMA + "l40s"),
            _gpu("rtx-4070-ti", 504, _geforce(40.1, 2, 8, **_float8(160.4)),
                 (2000, 8_000, 0.62, 0.45, 0.87), _TENSOR + "rtx-4090"),
            _gpu("rtx-4060", 272, _geforce(15.1, 2, 8, **_float8(60.5)),
                 (2000, 8_000, 0.62, 0.45, 0.87), _TENSOR + "rtx-4090"),
            _gpu("rtx-3090", 936, _rates(71, 35.6, int8=284),
                 (6000, 14_000, 0.76, 0.60, 0.81), _LLAMA + "a100-80gb"),
            _gpu("rtx-3080", 760, _geforce(29.8, 2, 8),
                 (6000, 14_000, 0.76, 0.60, 0.81), _TENSOR + "rtx-3090"),
            _gpu("rtx-3070", 448, _geforce(20.3, 2, 8),
                 (6000, 14_000, 0.76, 0.60, 0.81), _TENSOR + "rtx-3090"),
            _gpu("rtx-3060", 360, _geforce(12.7, 2, 8),
                 (6000, 14_000, 0.76, 0.60, 0.81), _TENSOR + "rtx-3090"),
            _gpu("dgx-spark", 273, _rates(125, 31, int8=250, **_float8(250)),
                 (3000, 12_000, 0.70, 0.40, 0.78), _TENSOR + "b200"),
            # AMD's data sheet; Apple's press notes, whose units run float16 as fast as float32.
            _gpu("rx-7900-xtx", 960, _rates(122.8, 61.4),
                 (5000, 14_000, 0.50, 0.40, 0.60), _GUESSED),
            _gpu("m1-max", 400, _rates(10.4, 10.4), (5000, 14_000, 0.80, 0.40, 0.75), _APPLE, ()),
            _gpu("m2-ultra", 800, _rates(27.2, 27.2), (5000, 14_000, 0.69, 0.40, 0.74), _APPLE, ()),
            _gpu("m3-max", 400, _rates(14.2, 14.2), (5000, 14_000, 0.87, 0.40, 0.89), _APPLE, ()),
            _gpu("m4", 120, _rates(4.3, 4.3), (5000, 14_000, 0.84, 0.40, 0.75), _APPLE, ()),
            # Hosts of two channels, each of eight bytes a transfer.
            _host("ddr4-2666", 42.7),
            _host("ddr4-3200", 51.2),
            _host("ddr5-4800", 76.8),
            _host("ddr5-5600", 89.6),
            _host("ddr5-6400", 102.4),
            _host("lpddr5x-8533", 136.5),
        )
    }
)  # fmt: skip
"""Presets by name, to be used as ``Device.device_class``."""
