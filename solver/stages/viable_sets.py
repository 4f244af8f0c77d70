"""Sets of devices with the time and the memory for the units outside a border."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from solver.model.arrays import Bools, Floats, Ints
from solver.presolve.device_kinds import sums_by_set


class Borders(NamedTuple):
    """Work and weights before and after each border between stages.

    Work is by each unit's fastest class. Weights that both sides read are on both.
    """

    before_ns: Floats
    after_ns: Floats
    before_bytes: Floats
    after_bytes: Floats

    def part(self, which: slice) -> Borders:
        """Return a slice of the borders."""
        return Borders(*(column[which] for column in self))


class ViableSets:
    """Sets of devices that can run everything after a border, while others run the units before it.

    `counts` are the devices of each kind by set, and `full` all of each kind; a plan may use
    `most`. By kind, `slowness` is the least ratio of a unit's time to its time on its fastest
    class, and `capacities` are bytes, maybe infinite.

    A set must hold the weights after the border, and the best other devices that may be used
    besides must hold those before it. With a ceiling T on the load a device does at most T / r of
    work, where r is its slowness.
    """

    def __init__(
        self,
        counts: Ints,
        full: Sequence[int],
        most: int,
        slowness: Sequence[float],
        capacities: Sequence[float],
    ) -> None:
        speeds = [1 / ratio for ratio in slowness]
        (self.speed, self._speed_of_others), (self._bytes, self._bytes_of_others) = (
            sums_by_set(counts, full, amounts, most) for amounts in (speeds, capacities)
        )

    def can(self, borders: Borders, ceiling_ns: float, sets: slice = slice(None)) -> Bools:
        """Return True where a set (row, one of `sets`) is viable at a border (column).

        The ceiling on the load of every device may be infinite.
        """
        viable: Bools = borders.after_bytes <= self._bytes[sets, None]
        viable &= borders.before_bytes <= self._bytes_of_others[sets, None]
        if ceiling_ns < np.inf:
            # Ratios are inexact floats; a few too many sets do no harm.
            most_ns = ceiling_ns * (1 + 1e-9)
            viable &= borders.after_ns <= most_ns * self.speed[sets, None] + 1
            viable &= borders.before_ns <= most_ns * self._speed_of_others[sets, None] + 1
        return viable
