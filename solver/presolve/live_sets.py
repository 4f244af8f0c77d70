"""Sets of storages of units that are live together."""

from __future__ import annotations

from collections.abc import Sequence

from solver.presolve.instance import Storage


def held_from(storage: Storage) -> int:
    """Return the step from which a storage is no longer live, but stays or may wait."""
    return storage.first if storage.is_output else storage.last + 1


def maximal_live_sets(storages: Sequence[Storage]) -> list[tuple[int, list[Storage]]]:
    """Return the steps at which the set of live storages is maximal, with those sets.

    A storage is live from `first` to `last`. These are the maximal cliques of an interval
    graph: at the first end after a start. Every other live set is a subset of one of them.
    Storages that stay until the end are not in the sets, but their starts count.
    """
    transient = sorted(
        (s for s in storages if not s.is_output and s.last >= 0), key=lambda s: s.first
    )
    starts = sorted(s.first for s in storages if s.is_output or s.last >= 0)
    result: list[tuple[int, list[Storage]]] = []
    live: list[Storage] = []
    next_live = next_start = 0
    ends = {storage.last for storage in transient}
    for step in sorted(ends | {max([0, *starts, *ends])}):
        while next_live < len(transient) and transient[next_live].first <= step:
            live.append(transient[next_live])
            next_live += 1
        started = next_start
        while next_start < len(starts) and starts[next_start] <= step:
            next_start += 1
        if next_start > started or not result:
            result.append((step, list(live)))
        live = [storage for storage in live if storage.last > step]
    return result
