"""The named choices of the library's options, checked without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, get_args

from solver import PartitionError
from solver.model.checks import did_you_mean
from solver.model.text import shown

DEVICE_TYPES: Final = ("cpu", "cuda")

MATH: Final = "math"
CUDA_KERNELS: Final = ("flash", "efficient")
"""Those of CUDA devices of compute capability 8.0 or more."""
CPU_KERNELS: Final = ("cpu",)
FUSED_KERNELS: Final = (*CUDA_KERNELS, "efficient_sm70", "cudnn", *CPU_KERNELS)
"""Of attention; ``"efficient_sm70"`` is for CUDA devices below compute capability 8.0."""

Optimizer = Literal["sgd", "momentum", "adam", "adamw"]
TiedReaders = Literal["colocate", "sum"]
"""Treatment in training of a parameter that several operators read: all of them run on one device,
or every device with a reader holds a copy, and the gradients of the copies are summed."""
ExpertsRead = Literal["average", "most", "all"]
"""Number of experts that a product reads: the mean if rows choose experts uniformly, the largest
number that rows can choose, or every one."""

_FLOATS: Final = (
    "bfloat16 float16 float32 float64 float4_e2m1fn_x2 float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
    "float8_e5m2fnuz float8_e8m0fnu complex32 complex64 complex128"
)
_OTHERS: Final = "bool bits8 bits16 bits1x8 bits2x4 bits4x2 qint8 qint32 quint8 quint2x4 quint4x2"
_BITS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
DTYPES: Final = tuple(
    sorted(f"{_FLOATS} {_OTHERS}".split() + [f"{s}int{n}" for s in ("", "u") for n in _BITS])
)
"""Dtypes of torch, by the names in operators."""


def checked_kernels(kernels: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of fused kernels by priority, or None if `kernels` is None.

    A string separates them by commas; ``"math"`` is always available, and left out. PartitionError
    if a name is unknown, or `kernels` is of another type.

    Examples
    --------
    >>> checked_kernels("flash,efficient"), checked_kernels("math")
    (('flash', 'efficient'), ())
    """
    if kernels is None:
        return None
    names = kernels.split(",") if isinstance(kernels, str) else kernels
    known = (*FUSED_KERNELS, MATH)
    if not isinstance(names, (list, tuple)) or any(name not in known for name in names):
        raise PartitionError(
            f"attention is {shown(kernels)}; write one or more of {', '.join(known)}, such as "
            "'flash,efficient'"
        )
    return tuple(name for name in names if name != MATH)


def check_optimizer(optimizer: str) -> None:
    """Raise PartitionError unless `optimizer` is known."""
    if optimizer not in get_args(Optimizer):
        raise PartitionError(
            f"optimizer is {shown(optimizer)}; write one of {', '.join(get_args(Optimizer))}"
        )


def check_dtypes(names: Iterable[object], where: str) -> None:
    """Raise PartitionError, beginning with `where`, unless all `names` are dtypes of torch."""
    for name in names:
        if name not in DTYPES:
            hint = did_you_mean(name, DTYPES, "write names such as float32 and bfloat16", most=1)
            raise PartitionError(f"{where}: there is no dtype {shown(name)}; {hint}")
