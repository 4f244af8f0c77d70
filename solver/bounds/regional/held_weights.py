"""Weights of a stage, as a sum over its units."""

from __future__ import annotations

import numpy as np

from solver.bounds.regional.spine import units_between
from solver.model.arrays import Ints
from solver.presolve.instance import Instance

_MOST_VISITS = 4_000_000
"""Edges visited for all pairs of readers together, about a second."""


def stage_weights(units: Instance) -> Ints:
    """Return weights by unit whose sum no stage of these units undercuts.

    These are the instance's `first_weights`, with a weight counted again where it is far behind its
    last reader: an embedding that is also the output layer is on the first device and on the last.

    They are bytes, and valid for stages that fit on some device; others may hold less.

    Proof. Let a path lead from reader r to reader s of a weight, and let the units on such paths
    hold more than any device has memory for, together with that weight. A stage with both r and s
    has all these units, as no path leaves a stage and comes back; so it fits nowhere. Readers are
    chosen one after another, each this far behind the last one. A path leads through all of them,
    so a stage that fits has at most one, and the weight counts once in it. With several chunks or a
    backward pass a device has units far from each other, and weights count at the first reader
    alone.
    """
    held = units.first_weights
    problem = units.problem
    memory = [device.memory_bytes for device in problem.devices]
    if not problem.is_forward_only or None in memory:
        return held
    most = max((size for size in memory if size is not None), default=0)
    before = np.concatenate([[0], np.cumsum(held)])
    visits = 0
    more = np.zeros_like(held)
    for entry in sorted(units.weights, key=lambda entry: -entry.size_bytes):
        last = entry.units[0]
        for reader in entry.units[1:]:
            free_bytes = most - entry.size_bytes
            if before[reader] - before[last + 1] <= free_bytes:
                continue
            visits += len(units.edges)
            if visits > _MOST_VISITS:
                return held + more
            inner = units_between(units, last, reader)[1:-1]
            if held[inner].sum() > free_bytes:
                more[reader] += entry.size_bytes
                last = reader
    return held + more
