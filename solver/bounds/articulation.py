"""Units that are comparable to all others, and the regions between them.

An *articulation unit* is an ancestor or a descendant of every other unit. Every set of units that
is closed under ancestors (what the first stages of a plan run) ends in one *region*: it has all
units up to some articulation unit, none from the next one on, and some of those between the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.model.arrays import Flags, Ints


def articulation_units(count: int, edges: Sequence[tuple[int, int]]) -> Ints:
    """Return the units that are comparable to all others, ascending.

    Parameters
    ----------
    count : int
        Number of units, numbered in a topological order of `edges`.
    edges : sequence of (int, int)
        Arcs between units.

    Notes
    -----
    Proof: call a unit v <= t *open* at t if none of its successors is <= t. From every unit
    v <= t a walk along successors <= t ends in a unit that is open at t; t itself is always
    open. So all units before t are ancestors of t if and only if t is the only open unit at t.
    The same holds for descendants in the reversed graph. Units incomparable to t may come
    before or after it, so both counts are needed. Linear time and memory.
    """
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    first_successor = np.full(count, count, dtype=np.int64)
    np.minimum.at(first_successor, ends[:, 0], ends[:, 1])
    last_predecessor = np.full(count, -1, dtype=np.int64)
    np.maximum.at(last_predecessor, ends[:, 1], ends[:, 0])
    forward = _only_open(first_successor)
    backward = _only_open(count - 1 - last_predecessor[::-1])[::-1]
    return np.flatnonzero(forward & backward)


def _only_open(first_successor: Ints) -> Flags:
    """Return whether each unit is the only open one at its own place."""
    count = len(first_successor)
    units = np.arange(count)
    change = np.zeros(count + 1, dtype=np.int64)
    np.add.at(change, units, 1)
    np.add.at(change, first_successor, -1)
    only: Flags = np.cumsum(change[:-1]) == 1
    return only
