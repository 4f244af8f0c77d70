"""Bounds of the memory of relayed stages, as sums of terms of their two borders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.presolve.instance import Instance


@dataclass(frozen=True, slots=True)
class Price:
    """A price of memory, as a fraction so that sums are exact: `ns` for `size_bytes`.

    With no bytes for some time, no saving of time pays for more memory.
    """

    ns: int = 0
    size_bytes: int = 1


class LeastHeld:
    """A lower bound of the bytes of a stage, as a sum of terms of its two borders.

    A weight or a graph input is counted at one of its readers, and of storages those that stay to
    the end of the stage. A storage that waits for a reader after the end counts there, and is
    subtracted at the start, before which its value may have been made: at most as much as is
    received.

    `within` and `saved` are by unit, with one microbatch in flight, and for each further one;
    `at_end` and `at_start` by net of ``units.transfers``.
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


class MostHeld:
    """An upper bound of the bytes that a stage gains if units join it, or if readers leave it.

    All storages of a unit are counted at once, with all its weights and inputs; a storage begins to
    wait for the end of the stage when a reader leaves.

    `within`, `saved`, `at_end` and `at_start` are as in :class:`LeastHeld`; `waiting` is the part
    of `within` that may wait for readers, and `waiting_for` its bytes by unit and readers.
    """

    def __init__(self, units: Instance) -> None:
        self.within, self.saved, self.waiting = np.zeros((3, len(units)), dtype=np.int64)
        nets = units.transfers.nets
        self.at_end = np.array([net.returned_bytes for net in nets], dtype=np.int64)
        self.at_start = np.array([net.held_bytes for net in nets], dtype=np.int64)
        self.waiting_for: dict[tuple[int, tuple[int, ...]], int] = {}
        entries = [(entry.units, entry.size_bytes) for entry in units.weights]
        entries += [(net.consumers, net.held_bytes) for net in units.input_nets]
        entries += [((storage.unit,), storage.size_bytes) for storage in units.storages]
        for members, size_bytes in entries:
            self.within[list(members)] += size_bytes
        for entry in units.saved:
            self.saved[list(entry.units)] += entry.size_bytes
        for storage in units.storages:
            if storage.readers:
                ends = storage.unit, storage.readers
                self.waiting[storage.unit] += storage.size_bytes
                self.waiting_for[ends] = self.waiting_for.get(ends, 0) + storage.size_bytes
