"""The array that compiled moves work on, made of a problem; importing this loads numba.

What the numbers mean is said by :class:`solver.heuristics.annealing.stage_state.StageState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from solver.heuristics.annealing.compiled_moves import MOST_TOGETHER, Layout
from solver.heuristics.annealing.stage_times import TransferTables
from solver.model.arrays import Ints, Lists
from solver.model.devices import Device
from solver.model.problem import PartitionProblem
from solver.model.training import most_in_flight
from solver.presolve.instance import Instance, SharedBytes, Storage
from solver.presolve.live_sets import maximal_live_sets
from solver.presolve.transfers import nets_by_unit

UNLIMITED = 1 << 62
"""Capacity of a device without one."""


def move_tables(units: Instance, devices: Sequence[Device], seed: int) -> tuple[Ints, Layout]:
    """Return the array and its layout, with all units at position 0.

    Parameters
    ----------
    devices : sequence of Device
        By position.
    seed : int
        Of the random moves.
    """
    return _Tables(units, devices).filled(seed)


class _Tables:
    def __init__(self, units: Instance, devices: Sequence[Device]) -> None:
        self.units = units
        self.devices = devices
        self.count = len(devices)
        self.problem = units.problem
        self.counts_values = units.problem.memory_model != "weights"
        self._blocks: list[Ints] = []
        # The number of the staging table is 0 if there is none, so that no table is at 0.
        self._length = 0
        self.put([0])

    def put(self, values: npt.ArrayLike) -> int:
        """Append numbers; return where they begin."""
        block = np.asarray(values, dtype=np.int64).ravel()
        start = self._length
        self._blocks.append(block)
        self._length += len(block)
        return start

    def put_rows(self, rows: Iterable[Sequence[int]]) -> int:
        """Append a list of numbers for each item."""
        lists = Lists.of(rows)
        start = self.put(lists.start + self._length + len(lists.start))
        self.put(lists.values)
        return start

    def put_at_first(self, values: npt.ArrayLike) -> int:
        """Append a row by position for each of the values, which are those of position 0."""
        rows = np.zeros((np.size(values), self.count), dtype=np.int64)
        rows[:, 0] = values
        return self.put(rows)

    def filled(self, seed: int) -> tuple[Ints, Layout]:
        units, count = self.units, self.count
        banned = np.zeros((len(units), count), dtype=np.int64)
        for unit, allowed in enumerate(units.allowed_devices):
            if allowed is not None:
                banned[unit] = [device.name not in allowed for device in self.devices]
        weights = list(units.weights)
        if self.counts_values:
            # The caller's values are held like weights: once by every device that reads them.
            weights += [SharedBytes(net.consumers, net.held_bytes) for net in units.input_nets]
        capacity = [
            UNLIMITED if device.memory_bytes is None else device.memory_bytes
            for device in self.devices
        ]
        places = {
            "units": len(units),
            "positions": count,
            "successors": self.put_rows(units.successors),
            "predecessors": self.put_rows(units.predecessors),
            "banned": self.put(banned),
            "weights": self.put_at_first(sum(entry.size_bytes for entry in weights)),
            "saved": self.put_at_first(sum(entry.size_bytes for entry in units.saved)),
            "in_flight": self.put(_in_flight(self.problem, count)),
            "counts_values": int(self.counts_values),
            "capacity": self.put(capacity),
            "memory": self.put_at_first(0),
            "size": self.put_at_first(len(units)),
            "at": self.put([0] * len(units)),
            "best_at": self.put([0] * len(units)),
            "together": self.put([0] * (3 * MOST_TOGETHER)),
            "random": self.put([seed % 2**63]),
        }
        layout = Layout(
            **places,
            **self._times(),
            **self._storages(units.storages if self.counts_values else ()),
            weights_shared=self._shared(weights),
            saved_shared=self._shared(units.saved),
        )
        return np.concatenate(self._blocks), layout

    def _times(self) -> dict[str, int]:
        units, devices, count = self.units, self.devices, self.count
        transfers = TransferTables(units, devices, every_value=self.counts_values)
        nets = transfers.nets
        produced, consumed = nets_by_unit(nets, len(units))
        # Equal links share one list of times.
        put: dict[int, int] = {}
        link = np.zeros((count, count), dtype=np.int64)
        for source in range(count):
            for target in range(count):
                if source != target:
                    times = transfers.links[source][target]
                    if id(times) not in put:
                        put[id(times)] = self.put(times)
                    link[source, target] = put[id(times)]
        blocks = 3 if self.problem.interconnect.overlap else 1
        parts = np.zeros((blocks + 1) * count, dtype=np.int64)
        parts[0] = units.work_ns[devices[0].device_class].sum()
        return {
            "nets": len(nets),
            "compute_ns": self.put([units.work_ns[device.device_class] for device in devices]),
            "producer": self.put([net.producer for net in nets]),
            "held_bytes": self.put([net.held_bytes for net in nets]),
            "produced": self.put_rows(produced),
            "consumed": self.put_rows(consumed),
            "link": self.put(link),
            "write_ns": self.put(transfers.writes) if transfers.writes else 0,
            "parts": self.put(parts),
            "trial": self.put(parts),
            "send_at": count if blocks > 1 else 0,
            "receive_at": 2 * count if blocks > 1 else 0,
            "bytes_at": blocks * count,
            "reading": self.put_at_first([len(net.consumers) for net in nets]),
            "spread": self.put([1] * len(nets)),
        }

    def _shared(self, shared: Sequence[SharedBytes]) -> tuple[int, int, int, int]:
        own = [0] * len(self.units)
        entries: list[list[int]] = [[] for _ in own]
        sizes: list[int] = []
        users: list[int] = []
        for entry in shared:
            if len(entry.units) == 1:
                own[entry.units[0]] += entry.size_bytes
                continue
            for unit in entry.units:
                entries[unit].append(len(sizes))
            sizes.append(entry.size_bytes)
            users.append(len(entry.units))
        return (
            self.put(own),
            self.put_rows(entries),
            self.put(sizes),
            self.put_at_first(users),
        )

    def _storages(self, storages: Sequence[Storage]) -> dict[str, int]:
        """Put the rows of ``docs/definition.md``, section 3, that storages count in."""
        steps = [step for step, _ in maximal_live_sets(storages)] if storages else []
        low = np.searchsorted(steps, [s.first for s in storages], side="left")
        high = np.searchsorted(steps, [s.last for s in storages], side="right")
        sizes = np.array([s.size_bytes for s in storages], dtype=np.int64)
        stays = np.array([s.is_output for s in storages], dtype=np.bool_)
        owned: list[list[int]] = [[] for _ in range(len(self.units))]
        read: list[list[int]] = [[] for _ in range(len(self.units))]
        for number, storage in enumerate(storages):
            owned[storage.unit].append(number)
            for reader in storage.readers:
                read[reader].append(number)
        change = np.zeros(len(steps) + 1, dtype=np.int64)
        np.add.at(change, low, sizes)
        np.add.at(change, np.where(stays, len(steps), high), -sizes)
        live = np.zeros((self.count, len(steps)), dtype=np.int64)
        live[0] = np.cumsum(change[:-1])
        return {
            "steps": len(steps),
            "owner": self.put([s.unit for s in storages]),
            "low": self.put(low),
            "high": self.put(high),
            "storage_bytes": self.put(sizes),
            "stays": self.put(stays),
            "absent": self.put([0] * len(storages)),
            "readers": self.put_rows([s.readers for s in storages]),
            "owned": self.put_rows(owned),
            "read": self.put_rows(read),
            "live": self.put(live),
            "peak": self.put_at_first(live[0].max(initial=0)),
        }


def _in_flight(problem: PartitionProblem, positions: int) -> Ints:
    table = np.ones((positions + 1, positions + 1), dtype=np.int64)
    if problem.is_training:
        for devices in range(1, positions + 1):
            for followers in range(devices):
                table[devices, followers] = most_in_flight(
                    problem.schedule,
                    problem.microbatches,
                    chunks=problem.chunks_per_device,
                    devices=devices,
                    followers=followers,
                )
    return table
