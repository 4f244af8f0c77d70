"""Rows of units with the most work for their loads."""

from __future__ import annotations

from collections.abc import Sequence


def best_window(gains: Sequence[int]) -> range | list[int]:
    """Return places in a row, the first after the last, whose gains have the largest sum.

    Of a cycle it is the best row that does not pass its end, or all but the worst such row (J.
    Bentley, "Programming pearls: algorithm design techniques", CACM 27, 1984).
    """
    inner, gain = _best_row(gains)
    outer, loss = _best_row([-each for each in gains])
    if sum(gains) + loss > gain:
        return [at for at in range(len(gains)) if at not in outer]
    return inner


def _best_row(gains: Sequence[int]) -> tuple[range, int]:
    """Return places in a row whose gains have the largest sum, none if that is not positive."""
    best, most = range(0), 0
    start = total = 0
    for at, gain in enumerate(gains):
        if total <= 0:
            start, total = at, 0
        total += gain
        if total > most:
            best, most = range(start, at + 1), total
    return best, most
