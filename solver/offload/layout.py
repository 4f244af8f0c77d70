"""Counts of modes laid out over the units of a problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from solver.offload.bound import CountAnswer, UnitClass
from solver.offload.units import UnitMode

State = tuple[tuple[int, ...], tuple[UnitMode, ...]]
"""The device, by position, and the mode of every unit."""


def layouts(classes: Sequence[UnitClass], answer: CountAnswer) -> Iterator[State]:
    """Yield plans that have the counts of a solution: modes spread, then those of a kind together.

    Alike units cost alike; their places in the order decide how well the timeline hides loads.
    """
    if answer.devices is None:
        return
    for arrange in (_spread, _hosts_first, _hosts_last):
        modes: list[UnitMode] = ["resident"] * len(answer.devices)
        for number, kind in enumerate(classes):
            for device in sorted(set(answer.devices)):
                members = [m for m in kind.members if answer.devices[m] == device]
                counts = {
                    mode: answer.counts.get((number, device, mode), 0) for mode in kind.unit.modes
                }
                for member, mode in zip(members, arrange(counts), strict=True):
                    modes[member] = mode
        yield answer.devices, tuple(modes)


def _spread(counts: dict[UnitMode, int]) -> list[UnitMode]:
    """Return modes as even as they can be: the one that is furthest behind its share comes next."""
    total = sum(counts.values())
    placed = dict.fromkeys(counts, 0)
    order: list[UnitMode] = []
    for turn in range(1, total + 1):
        mode = max(counts, key=lambda mode: counts[mode] * turn - placed[mode] * total)
        placed[mode] += 1
        order.append(mode)
    return order


def _hosts_first(counts: dict[UnitMode, int]) -> list[UnitMode]:
    hosts = counts.get("host", 0)
    first: list[UnitMode] = ["host"] * hosts
    return first + _spread({**counts, "host": 0})


def _hosts_last(counts: dict[UnitMode, int]) -> list[UnitMode]:
    return _hosts_first(counts)[::-1]
