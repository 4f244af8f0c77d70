"""Reading and formatting of numbers with units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from solver.model.errors import PartitionError

MISSING = "-"
_MAX_DIGITS: Final = 30
_UNITS: Final[Mapping[str, int]] = {
    "b": 1,
    **{f"{prefix}b": 1000 ** (i + 1) for i, prefix in enumerate("kmgt")},
    **{f"{prefix}ib": 1024 ** (i + 1) for i, prefix in enumerate("kmgt")},
}
_UNIT_NAMES: Final = "B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
_QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")
_NS_OF: Final[Mapping[str, int]] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_MOST_NAMES: Final = 4
"""Most names of a list to show; the rest are counted."""


def parse_memory(text: str, where: str, example: str) -> int | None:
    """Parse a memory size such as ``24GiB`` as bytes, and ``unlimited`` as None."""
    if text.strip().lower() == "unlimited":
        return None
    size = quantity(text, where, "memory", example)
    if size < 1:
        raise PartitionError(f"{where}: memory is {text.strip()}; {example}")
    return math.floor(size)


def quantity(text: str, where: str, what: str, example: str) -> Fraction:
    """Parse a text as an unrounded number of bytes; errors as in `parse_memory`."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise PartitionError(f"{where}: {text.strip()!r} is not a {what}; {example}")
    if not match[2]:
        raise PartitionError(f"{where}: {what} {text.strip()!r} has no unit; {example}")
    unit = _UNITS.get(match[2].lower())
    if unit is None:
        raise PartitionError(f"{where}: unit {match[2]!r} is unknown; write {_UNIT_NAMES}")
    check_digits(match[1], where)
    # Exact arithmetic: 0.1GB is 100,000,000 bytes, without the rounding of floats.
    return Fraction(match[1]) * unit


def parse_duration(text: str, where: str, example: str) -> int:
    """Parse a time such as ``10us`` or ``1.5ms`` as nanoseconds, rounded up."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _NS_OF:
        raise PartitionError(f"{where}: {text.strip()!r} is not a time; {example}")
    check_digits(match[1], where)
    return math.ceil(Fraction(match[1]) * _NS_OF[match[2]])


def check_digits(digits: str, where: str) -> None:
    """Refuse overlong numbers: Python parses none of thousands of digits."""
    if len(digits) > _MAX_DIGITS:
        raise PartitionError(
            f"{where}: a number has {len(digits)} digits; write at most {_MAX_DIGITS}"
        )


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun in the singular or plural.

    Examples
    --------
    >>> counted(1, "stage"), counted(2000, "stage"), counted(2, "microbatch", "microbatches")
    ('1 stage', '2,000 stages', '2 microbatches')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def format_ns(value_ns: int | None) -> str:
    """Return a time with four significant digits, such as ``12.34 ms``."""
    if value_ns is None:
        return MISSING
    for size, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if value_ns >= size:
            return f"{_digits(value_ns / size)} {unit}"
    return f"{value_ns} ns"


def format_bytes(value_bytes: int | None) -> str:
    """Return bytes in powers of 1000, such as ``141.1 GB``."""
    if value_bytes is None:
        return "unlimited"
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if value_bytes >= size:
            return f"{_digits(value_bytes / size)} {unit}"
    return f"{value_bytes} B"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def format_value(objective: str, value: int | None) -> str:
    """Return the value of an objective in its unit."""
    if value is None:
        return MISSING
    if objective in ("bottleneck", "latency", "step"):
        return format_ns(value)
    if objective == "transfer":
        return format_bytes(value)
    if objective == "peak_memory":
        return f"{value / 10:.1f} %"
    return str(value)


def format_gap(gap: float | None) -> str:
    """Return a gap in percent; a gap that is not zero never reads as zero."""
    if gap is None:
        return MISSING
    if gap == 0:
        return "0 %"
    return "< 0.01 %" if gap < 0.0001 else f"{gap * 100:.2f} %"


def format_seconds(value_s: float | None) -> str:
    """Return a wall time in seconds."""
    return MISSING if value_s is None else f"{value_s:.2f} s"


def exact_bytes(size_bytes: int) -> str:
    """Return bytes in a readable unit and exactly."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    return f"{format_bytes(size_bytes)} ({size_bytes:,} B)"


def listed(names: Sequence[str], last: str = "and") -> str:
    """Return the first names of a list as part of a sentence, with the number of others."""
    shown = list(names)
    if len(shown) > _MOST_NAMES:
        rest = len(shown) - _MOST_NAMES + 1
        shown = [*shown[: _MOST_NAMES - 1], f"{rest} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} {last} {shown[-1]}"


def quoted(names: Sequence[str]) -> str:
    """Return the first names of a list, each in quotes."""
    return listed([repr(name) for name in names])
