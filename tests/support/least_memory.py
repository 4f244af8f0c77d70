"""The least memory with which a problem has a plan, by brute force."""

from __future__ import annotations

from dataclasses import replace

from solver.model.problem import PartitionProblem
from tests.support.oracle import has_plan
from tests.support.random_problems import to_instance

_MOST_BYTES = 1 << 40


def with_memory(problem: PartitionProblem, memory_bytes: int) -> PartitionProblem:
    """Return a problem with devices of equal capacity."""
    devices = [replace(device, memory_bytes=memory_bytes) for device in problem.devices]
    return problem.replace(devices=tuple(devices))


def least_memory(problem: PartitionProblem) -> int | None:
    """Return the least capacity of all devices with which there is a plan; None if none is."""

    def is_enough(memory_bytes: int) -> bool:
        return has_plan(to_instance(with_memory(problem, memory_bytes)))

    low, high = 0, 1
    while not is_enough(high):
        low, high = high, 2 * high
        if high > _MOST_BYTES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
