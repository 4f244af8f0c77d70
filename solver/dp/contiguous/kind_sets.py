"""Sets of devices of some kinds as numbers, and by size, for array operations on many of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from solver.model.arrays import Ints


class KindSets:
    """All sets of at most `most` devices, up to exchanges within a kind.

    Parameters
    ----------
    counts : sequence of int
        Devices of each kind.
    most : int
        The most devices of a set.

    Attributes
    ----------
    count : int
        Numbers of sets; the empty one has 0. Some belong to sets that are too large.
    strides : list of int
        By kind: what one device of it adds to the number of a set.
    size : array of int64
        Devices of each set.
    levels : list of array of int64
        The sets of 1, 2, ... devices, ascending.
    steps : list of list of (int, array, array)
        For each level and kind the sets with a device of the kind, and the same without it.
    """

    def __init__(self, counts: Sequence[int], most: int) -> None:
        self._limits = limits = [min(count, most) for count in counts]
        self.strides: list[int] = []
        self.count = 1
        for limit in limits:
            self.strides.append(self.count)
            self.count *= limit + 1
        numbers = np.arange(self.count, dtype=np.int64)
        has = np.zeros((len(limits), self.count), dtype=np.bool_)
        self.size = np.zeros(self.count, dtype=np.int64)
        for kind, (stride, limit) in enumerate(zip(self.strides, limits, strict=True)):
            digit = numbers // stride % (limit + 1)
            has[kind] = digit > 0
            self.size += digit
        # A stable sort, so that the sets of a level ascend.
        by_size = np.argsort(self.size, kind="stable")
        ends = np.searchsorted(self.size[by_size], np.arange(1, most + 2))
        self.levels: list[Ints] = []
        self.steps: list[list[tuple[int, Ints, Ints]]] = []
        for low, high in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            sets = by_size[low:high]
            level: list[tuple[int, Ints, Ints]] = []
            for kind, stride in enumerate(self.strides):
                targets = sets[has[kind, sets]]
                if len(targets):
                    level.append((kind, targets, targets - stride))
            self.levels.append(sets)
            self.steps.append(level)

    def smaller(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield the kinds of a set, each with the set without one device of it."""
        for kind, (stride, limit) in enumerate(zip(self.strides, self._limits, strict=True)):
            if number // stride % (limit + 1):
                yield kind, number - stride
