"""Words for numbers of things."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number of things in words.

    Examples
    --------
    >>> counted(1, "stage"), counted(2000, "stage"), counted(2, "microbatch", "microbatches")
    ('1 stage', '2,000 stages', '2 microbatches')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
