"""Merging of colocation groups by union-find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def leader_of(leader: list[int], index: int) -> int:
    """Return the representative of an index, with path halving (union-find)."""
    while leader[index] != index:
        leader[index] = leader[leader[index]]
        index = leader[index]
    return index


def merged(names: Sequence[str], groups: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    """Merge overlapping groups of operators into a partition of `names`.

    `names` are in execution order; parts come in the order of their first operators.
    """
    index_of = {name: index for index, name in enumerate(names)}
    leader = list(range(len(names)))

    for group in groups:
        indices = [leader_of(leader, index_of[name]) for name in group]
        for index in indices:
            # The earliest operator leads, so that units come in execution order.
            first, other = sorted((leader_of(leader, indices[0]), leader_of(leader, index)))
            leader[other] = first
    members: dict[int, list[str]] = {}
    for index, name in enumerate(names):
        members.setdefault(leader_of(leader, index), []).append(name)
    return tuple(map(tuple, members.values()))
