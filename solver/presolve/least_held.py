"""What a stage holds at least, where values are relayed: sums of what its two borders say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.presolve.instance import Instance


@dataclass(frozen=True, slots=True)
class Price:
    """Time for memory, a fraction so that sums are exact: `ns` for `size_bytes`."""

    ns: int = 0
    size_bytes: int = 1


class LeastHeld:
    """Bytes that a stage holds at least, as sums of what its two borders say.

    A weight or a graph input is counted at one of its readers, and of storages those that stay to
    the end of the stage. A storage that waits since it is read behind the end counts there, and
    is taken off at the start, where its value may have been made before: as far as that is less
    than what is received.

    Attributes
    ----------
    within, saved : Ints
        By unit, with one microbatch in flight, and for each further one.
    at_end, at_start : Ints
        By net of ``units.transfers``.
    """

    def __init__(self, units: Instance) -> None:
        self.within, self.saved = np.zeros((2, len(units)), dtype=np.int64)
        nets = units.transfers.nets
        self.at_end, self.at_start = np.zeros((2, len(nets)), dtype=np.int64)
        for entry in units.weights:
            self.within[entry.units[-1]] += entry.size_bytes
        if units.problem.memory_model == "weights":
            return
        for net in units.input_nets:
            self.within[net.consumers[-1]] += net.held_bytes
        for entry in units.saved:
            self.saved[entry.units[0]] += entry.size_bytes
        waiting: dict[tuple[int, tuple[int, ...]], int] = {}
        for storage in units.storages:
            if storage.is_output:
                self.within[storage.unit] += storage.size_bytes
            elif storage.readers:
                ends = storage.unit, storage.readers
                waiting[ends] = waiting.get(ends, 0) + storage.size_bytes
        for number, net in enumerate(nets):
            sent = 0 if net.is_output else waiting.pop((net.producer, net.consumers), 0)
            sent = min(sent, net.held_bytes)
            self.at_end[number] = net.returned_bytes + sent
            self.at_start[number] = net.held_bytes - sent
