"""Which devices have the time and the memory for all that is outside a border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.arrays import Bools, Floats, Ints
from solver.presolve.device_kinds import sums_by_set


@dataclass(frozen=True, slots=True, eq=False)
class Borders:
    """What is before each border between stages, and what is behind it.

    Attributes
    ----------
    before_ns, after_ns : Floats, shape (borders,)
        Work by each unit's fastest class.
    before_bytes, after_bytes : Floats, shape (borders,)
        Weights; those that both sides read are on both.
    """

    before_ns: Floats
    after_ns: Floats
    before_bytes: Floats
    after_bytes: Floats

    def part(self, which: slice) -> Borders:
        """Return some of the borders."""
        return Borders(
            self.before_ns[which],
            self.after_ns[which],
            self.before_bytes[which],
            self.after_bytes[which],
        )


class ViableSets:
    """Sets of devices that can run all that is behind a border, while others run what is before it.

    Parameters
    ----------
    counts : Ints, shape (sets, kinds)
        Devices of each kind.
    full : sequence of int
        How many devices of each kind there are.
    most : int
        The most devices that a plan may use.
    slowness : sequence of float
        By kind, the least ratio of a unit's time to its time on its fastest class.
    rooms_bytes : sequence of float
        By kind; may be infinite.

    Notes
    -----
    A set must hold the weights of what is behind the border, and the best others that may be used
    besides those of what is before it. With a ceiling T on the load a device does at most T / r of
    work, where r is its slowness.
    """

    def __init__(
        self,
        counts: Ints,
        full: Sequence[int],
        most: int,
        slowness: Sequence[float],
        rooms_bytes: Sequence[float],
    ) -> None:
        speeds = [1 / ratio for ratio in slowness]
        (self.speed, self._speed_of_others), (self._bytes, self._bytes_of_others) = (
            sums_by_set(counts, full, amounts, most) for amounts in (speeds, rooms_bytes)
        )

    def can(self, borders: Borders, ceiling_ns: float, sets: slice = slice(None)) -> Bools:
        """Return which sets (rows) are viable at which borders (columns).

        Parameters
        ----------
        ceiling_ns : float
            Of the load of every device; may be infinite.
        sets : slice
            Those that are asked about.
        """
        viable: Bools = borders.after_bytes <= self._bytes[sets, None]
        viable &= borders.before_bytes <= self._bytes_of_others[sets, None]
        if ceiling_ns < np.inf:
            # Floats of ratios are not exact; a few too many sets do no harm.
            most_ns = ceiling_ns * (1 + 1e-9)
            viable &= borders.after_ns <= most_ns * self.speed[sets, None] + 1
            viable &= borders.before_ns <= most_ns * self._speed_of_others[sets, None] + 1
        return viable
