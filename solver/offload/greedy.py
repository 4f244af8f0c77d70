"""Units resident in order, device by device, as long as they fit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from solver.offload.instance import OffloadInstance
from solver.offload.layout import State
from solver.offload.units import UnitMode


def filled(
    instance: OffloadInstance,
    other: UnitMode,
    *,
    from_end: bool = False,
    passed: Collection[str] = (),
) -> State:
    """Make units resident in order, device by device, until a unit fits nowhere.

    The other units have mode `other` on the last device tried, which reserves memory for the
    caches of streamed units and for the largest load. Units in `passed` always have mode `other`.
    """
    units, count = instance.units, len(instance.units)
    order, names = list(range(count)), list(range(len(instance.devices)))
    if from_end:
        order.reverse()
        names.reverse()
    streams = other == "streamed"
    devices, modes = [names[-1]] * count, [other] * count
    waiting = sum(unit.cache_bytes for unit in units) if streams else 0
    largest = max(unit.loaded_bytes for unit in units) if streams else 0
    turn = held = 0
    for index in order:
        unit = units[index]
        if unit.name in passed:
            devices[index] = names[turn]
            continue
        waiting -= unit.cache_bytes if streams else 0
        while turn < len(names):
            reserved = largest + waiting if turn == len(names) - 1 else 0
            memory = instance.devices[names[turn]].memory_bytes
            if held + unit.held_bytes + reserved <= (math.inf if memory is None else memory):
                held += unit.held_bytes
                devices[index], modes[index] = names[turn], "resident"
                break
            turn, held = turn + 1, 0
        if turn == len(names):
            break
    return tuple(devices), tuple(modes)


def greedy_plans(instance: OffloadInstance) -> Iterator[State]:
    """Yield the plans that stream what is not resident, and that run it on the host.

    A unit that cannot have its mode has another one.
    """
    others: tuple[UnitMode, ...] = ("streamed", "host")
    for other in others:
        devices, modes = filled(instance, other)
        placed = zip(instance.units, modes, strict=True)
        yield devices, tuple(m if m in unit.modes else unit.modes[-1] for unit, m in placed)
