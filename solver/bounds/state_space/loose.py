"""What the weights of units outside a skeleton need of the memory that stages leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.bounds.state_space.skeleton import Skeleton
from solver.model.arrays import Bools, Floats
from solver.presolve.instance import SharedBytes

_LITTLE = 8
"""Weights smaller than the largest divided by this are not counted: they fit anywhere."""


@dataclass(frozen=True, slots=True)
class Loose:
    """Weights that no kept unit reads, in bytes by ideal.

    A unit outside the skeleton may be on a stage that begins at an ideal only if all kept units
    after it are outside the ideal, and on one that ends at an ideal only if all kept
    units before it are inside.

    Attributes
    ----------
    total : int
        Of all of them.
    quantum : int
        What the size of each is a multiple of; so is what fits into any room.
    released : Floats, shape (ideals,)
        Those that stages which begin at the ideal may hold.
    ready : Floats, shape (ideals,)
        Those that stages which end at the ideal may hold.
    waiting : Floats, shape (ideals,)
        Those that are among both: what is released and must be held before can be no other.
    """

    total: int
    quantum: int
    released: Floats
    ready: Floats
    waiting: Floats

    @classmethod
    def of(cls, skeleton: Skeleton, member: Bools, weights: Sequence[SharedBytes]) -> Loose:
        """Collect the weights that only units outside the skeleton read.

        Parameters
        ----------
        skeleton : Skeleton
            What is left of the graph.
        member : Bools, shape (places, ideals)
            Which places each ideal of the skeleton has.
        weights : sequence of SharedBytes
            All weights, with the units that read them.
        """
        kept = set(skeleton.units)
        loose = [entry for entry in weights if kept.isdisjoint(entry.units)]
        most_bytes = max((entry.size_bytes for entry in loose), default=0)
        counted = [entry for entry in loose if entry.size_bytes > most_bytes // _LITTLE]
        sums = np.zeros((3, member.shape[1]))
        for entry in counted:
            released = np.zeros(member.shape[1], dtype=np.bool_)
            ready = released.copy()
            for unit in entry.units:
                released |= ~member[list(skeleton.after[unit])].any(axis=0)
                ready |= member[list(skeleton.before[unit])].all(axis=0)
            sums += entry.size_bytes * np.stack([released, ready, released & ready])
        return cls(
            sum(entry.size_bytes for entry in counted),
            math.gcd(*(entry.size_bytes for entry in counted)) or 1,
            *sums,
        )

    def fitting(self, room: Floats) -> Floats:
        """Return how many bytes of them fit into some room at most."""
        result: Floats = np.minimum(room, self.total) // self.quantum * self.quantum
        return result
