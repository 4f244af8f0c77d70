"""The peak memory of a device, itemised by name."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from solver.evaluation.layout import Layout
from solver.evaluation.stage_memory import StageMemory, microbatches_in_flight
from solver.model.arrays import Ints, unique_pairs
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.recomputation import recomputation_of

AliveKind = Literal[
    "weight", "received", "value", "saved", "earlier", "gradient", "sent", "workspace"
]


class Alive(NamedTuple):
    """A holding of a device at its peak.

    Attributes
    ----------
    name : str
        Of the weight, operator or graph input.
    kind : str
        ``weight``, with its gradient and optimiser state in training; ``received``, from another
        stage or the caller, of all microbatches; ``value``, a storage that its operators made;
        ``saved``, kept for the backward pass of the current microbatch; ``earlier``, kept for
        those of earlier microbatches; ``gradient``, of a value, and buffers for returned ones;
        ``sent``, values that other stages read or the graph returns, of earlier microbatches, in
        training of all; ``workspace``, of the running operator.
    size_bytes : int
        Of the whole storage.
    """

    name: str
    kind: AliveKind
    size_bytes: int


def alive_at_peak(problem: PartitionProblem, plan: PartitionPlan) -> tuple[tuple[Alive, ...], ...]:
    """Return the holdings of each device at its peak, in the problem's order of devices.

    Returns
    -------
    tuple of tuple of Alive
        For each device largest first, equal ones by kind and name, none empty, and no name twice
        with one kind. The sizes of a device add up to its `memory_bytes` in
        :func:`~solver.evaluation.evaluate.evaluate`.

    Raises
    ------
    PartitionError
        If the plan, which need not be feasible, is not a total map from the operators to the
        devices.

    Notes
    -----
    Every stage of a device is taken at the first operator of its own peak, since the chunks of a
    device work on different microbatches at the same time (``docs/definition.md``, section 3).
    """
    layout = Layout(problem, plan)
    memory = StageMemory.of(problem, layout, recomputation_of(problem, plan))
    found = _Found(problem, layout)
    found.add_weights()
    if problem.memory_model != "weights":
        found.add_received(memory)
        found.add_held(memory)
        earlier = np.array(microbatches_in_flight(problem, plan), dtype=np.int64) - 1
        found.add_earlier(memory, earlier)
    return found.by_device()


class _Found:
    """Sums of bytes by device, name and kind."""

    def __init__(self, problem: PartitionProblem, layout: Layout) -> None:
        self._problem = problem
        self._layout = layout
        self._names = [op.name for op in problem.operators]
        self._names += [graph_input.name for graph_input in problem.inputs]
        self._bytes: list[dict[tuple[AliveKind, str], int]] = [{} for _ in problem.devices]

    def by_device(self) -> tuple[tuple[Alive, ...], ...]:
        """Return the holdings of each device, sorted."""
        return tuple(
            tuple(
                Alive(name, kind, size_bytes)
                for (kind, name), size_bytes in sorted(
                    entries.items(), key=lambda entry: (-entry[1], entry[0])
                )
            )
            for entries in self._bytes
        )

    def add_weights(self) -> None:
        """Add the distinct weights that the operators of each device read."""
        arrays, layout = self._problem.arrays, self._layout
        reader, key = arrays.weights.pairs(layout.order)
        device = layout.device_of_stage[layout.stage[reader]]
        holder, key = unique_pairs(device, key, len(arrays.weight_bytes))
        keys = list(self._problem.weights)
        sizes = arrays.weight_bytes[key].tolist()
        for number, index, size in zip(holder.tolist(), key.tolist(), sizes, strict=True):
            self._add(number, keys[index], "weight", size)

    def add_received(self, memory: StageMemory) -> None:
        """Add the values that each place receives and, with hops, the gradients returned to it."""
        arrays, layout = self._problem.arrays, self._layout
        device = layout.device_of_place
        received = memory.received
        self._add_values(
            device[memory.received_by], received, "received", arrays.held_bytes[received]
        )
        if layout.hops is not None:
            value, place = layout.hops.value, layout.place
            target, source = device[place[layout.hops.target]], device[place[layout.hops.source]]
            self._add_values(target, value, "received", arrays.held_bytes[value])
            self._add_values(source, value, "gradient", arrays.returned_bytes[value])

    def add_held(self, memory: StageMemory) -> None:
        """Add the holdings of each stage at its first peak."""
        holdings, layout = self._problem.holding_arrays, self._layout
        stage = layout.stage[holdings.operator[memory.held]]
        first_peaks = _first_peaks(memory, layout)
        peak = first_peaks[stage]
        here = (memory.held_from <= peak) & (peak < memory.held_until)
        held, device = memory.held[here], layout.device_of_stage[stage[here]]
        for number, index in zip(device.tolist(), held.tolist(), strict=True):
            holding = self._problem.holdings[index]
            name = self._names[int(holdings.operator[index])]
            self._add(number, name, holding.kind, int(holdings.size_bytes[index]))
        starts = np.searchsorted(layout.stage[layout.order], np.arange(layout.stage_count))
        for number, recomputed in memory.recomputed.items():
            for entry in recomputed.held_at(int(first_peaks[number] - starts[number])):
                name = self._names[entry.operator]
                device_number = int(layout.device_of_stage[number])
                self._add(device_number, name, entry.kind, entry.size_bytes)

    def add_earlier(self, memory: StageMemory, earlier: Ints) -> None:
        """Add the values saved for backward passes of `earlier` microbatches, by stage."""
        layout = self._layout
        stage = layout.stage[layout.order]
        saved_bytes = self._problem.arrays.saved_bytes[layout.order].copy()
        for number, recomputed in memory.recomputed.items():
            own = stage == number
            saved_bytes[own] = [recomputed.kept_bytes(i) for i in layout.order[own].tolist()]
        size_bytes = saved_bytes * earlier[stage]
        self._add_values(layout.device_of_stage[stage], layout.order, "earlier", size_bytes)

    def _add_values(self, device: Ints, value: Ints, kind: AliveKind, size_bytes: Ints) -> None:
        columns = (column.tolist() for column in (device, value, size_bytes))
        for number, index, size in zip(*columns, strict=True):
            self._add(number, self._names[index], kind, size)

    def _add(self, device: int, name: str, kind: AliveKind, size_bytes: int) -> None:
        if size_bytes:
            entries = self._bytes[device]
            entries[kind, name] = entries.get((kind, name), 0) + size_bytes


def _first_peaks(memory: StageMemory, layout: Layout) -> Ints:
    """Return the index in `layout.order` of the first peak of each stage."""
    stage = layout.stage[layout.order]
    at_peak = np.flatnonzero(memory.live_bytes == memory.peak_bytes[stage])
    stages, first = np.unique(stage[at_peak], return_index=True)
    peaks = np.zeros(layout.stage_count, dtype=np.int64)
    peaks[stages] = at_peak[first]
    return peaks
