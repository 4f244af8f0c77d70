"""Costs of segments of an order that depend on the kind of device alone.

Shared by :mod:`solver.dp.contiguous.chain_pass` and :mod:`solver.dp.contiguous.limit_program`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from solver.model.arrays import Ints
from solver.model.devices import Device
from solver.presolve.instance import Instance


def work_before(units: Instance, devices: Iterable[Device]) -> list[Ints]:
    """Return, for each device and each place of the operators of units, the time of all before."""
    order = [index for members in units.members for index in members]
    before: dict[str, Ints] = {}
    result: list[Ints] = []
    for device in devices:
        name = device.device_class
        if name not in before:
            work = units.problem.arrays.latency_ns(name)[order]
            before[name] = np.concatenate([[0], np.cumsum(work)])
        result.append(before[name])
    return result


def banned_before(units: Instance, devices: Sequence[Device]) -> list[Ints | None]:
    """Count, before each place, the operators that a device may not run; None if there are none."""
    sizes = list(map(len, units.members))
    banned: list[Ints | None] = []
    for device in devices:
        flags = np.repeat(units.banned(device), sizes)
        before = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
        banned.append(before if flags.any() else None)
    return banned
