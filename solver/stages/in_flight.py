"""Microbatches in flight in a stage."""

from __future__ import annotations

from solver.model.problem import PartitionProblem
from solver.model.training import most_in_flight


def in_flight(problem: PartitionProblem, following: int) -> int:
    """Return the microbatches in flight on the first of the last `following` devices.

    With several chunks per device it depends on the number of all devices; the most is
    counted. Without a backward pass there is one.
    """
    if not problem.is_training:
        return 1
    most = len(problem.devices) if problem.chunks_per_device > 1 else following
    return max(
        most_in_flight(
            problem.schedule,
            problem.microbatches,
            chunks=problem.chunks_per_device,
            devices=devices,
            followers=following - 1,
        )
        for devices in range(following, most + 1)
    )
