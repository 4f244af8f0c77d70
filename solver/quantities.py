"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

MISSING = "-"


def printable(text: str) -> str:
    """Return `text` with escapes for what a terminal would obey instead of show.

    Control characters, line breaks, characters that turn the direction of reading, and bytes
    that are no text become escapes of letters and digits.
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number of things in words.

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


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column to the left, the others to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
