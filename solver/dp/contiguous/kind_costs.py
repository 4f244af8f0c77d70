"""What segments of an order cost on a kind of device, as far as the kind alone decides it.

:class:`solver.dp.contiguous.chain_pass.ChainPass` and :mod:`solver.dp.contiguous.limit_program`
share these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from solver.model.arrays import Ints
from solver.model.devices import Device
from solver.model.problem import PartitionProblem
from solver.presolve.instance import Instance


def work_before(
    problem: PartitionProblem, order: Sequence[int], devices: Iterable[Device]
) -> list[Ints]:
    """Return, for each device and each place of an order of operators, the time of all before."""
    before: dict[str, Ints] = {}
    result: list[Ints] = []
    for device in devices:
        name = device.device_class
        if name not in before:
            work = problem.arrays.latency_ns(name)[list(order)]
            before[name] = np.concatenate([[0], np.cumsum(work)])
        result.append(before[name])
    return result


def banned_before(units: Instance, devices: Sequence[Device]) -> list[Ints | None]:
    """Count, before each place, the operators that a device may not run; None if it may all."""
    banned: list[Ints | None] = []
    if all(allowed is None for allowed in units.allowed_devices):
        return [None] * len(devices)
    for device in devices:
        flags = [
            units.allowed_devices[unit] is not None
            and device.name not in (units.allowed_devices[unit] or ())
            for unit, members in enumerate(units.members)
            for _ in members
        ]
        if any(flags):
            banned.append(np.concatenate([[0], np.cumsum(flags, dtype=np.int64)]))
        else:
            banned.append(None)
    return banned
