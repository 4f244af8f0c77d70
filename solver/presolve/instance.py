"""Lossless reductions: a problem restated on units that must share a device.

Nothing here changes the set of feasible plans or any cost; each function's docstring
proves it. :meth:`Instance.lift` turns an assignment of units back into a plan's assignment.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from solver.model.arrays import Bools, Ints, sums
from solver.model.devices import Device
from solver.model.problem import PartitionProblem
from solver.model.sharing import shared_while_held
from solver.presolve.graph import neighbours
from solver.presolve.operator_blocks import forward_arcs, operator_blocks
from solver.presolve.transfers import Net, Transfers

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """Bytes that every device running at least one of `units` holds once."""

    units: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """A :class:`solver.model.holdings.Holding` in terms of units.

    Attributes
    ----------
    unit : int
        The unit of its operator.
    first, last : int
        Positions in the execution order.
    readers : tuple of int
        Other units for which it waits, ascending.
    is_output : bool
        It stays until the stage ends, in any plan.
    """

    unit: int
    first: int
    last: int
    readers: tuple[int, ...]
    is_output: bool
    size_bytes: int


@dataclass(frozen=True)
class Instance:
    """The problem on units, with derived data; units are in a topological order.

    Derived data are computed on first use; arrays are read-only.

    Attributes
    ----------
    members : tuple of tuple of int
        Operator indices of each unit, in execution order.
    edges : tuple of (int, int)
        Forward arcs between different units, ascending.
    allowed_devices : tuple
        For each unit the devices that all its members allow; None allows all. An empty set
        makes the problem infeasible.
    nets, input_nets : tuple of Net
        Values of units, and of the caller, that other units read.
    relays : tuple of Net
        Relayed values, instead of `nets`; empty under other charging.
    weights, saved : tuple of SharedBytes
        `saved` has the bytes kept for one microbatch, in training.
    """

    problem: PartitionProblem
    members: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int], ...]
    allowed_devices: tuple[frozenset[str] | None, ...]
    nets: tuple[Net, ...]
    input_nets: tuple[Net, ...]
    relays: tuple[Net, ...]
    weights: tuple[SharedBytes, ...]
    saved: tuple[SharedBytes, ...]
    storages: tuple[Storage, ...]

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The units that read from each unit, ascending."""
        return neighbours(len(self), self.edges)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """The units that each unit reads from, ascending."""
        return neighbours(len(self), [(target, source) for source, target in self.edges])

    @cached_property
    def is_chain(self) -> bool:
        """True if each unit reads from the one before, so that there is one order of all."""
        arcs = set(self.edges)
        return all(pair in arcs for pair in itertools.pairwise(range(len(self))))

    @cached_property
    def nets_made(self) -> tuple[tuple[int, ...], ...]:
        """The nets of values of each unit, by their indices in `nets`."""
        return neighbours(len(self), ((net.producer, n) for n, net in enumerate(self.nets)))

    @cached_property
    def nets_read(self) -> tuple[tuple[int, ...], ...]:
        """The nets that each unit reads, by their indices in `nets`."""
        pairs = ((unit, n) for n, net in enumerate(self.nets) for unit in net.consumers)
        return neighbours(len(self), pairs)

    @cached_property
    def without_recomputation(self) -> Instance:
        """The same units without recomputation."""
        return condense(self.problem.replace(recompute="none"))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes of all devices, sorted."""
        return tuple(sorted({device.device_class for device in self.problem.devices}))

    @cached_property
    def work_ns(self) -> Mapping[str, Ints]:
        """The execution time of every unit on each class, in training with its backward pass."""
        latency_ns = self.problem.arrays.latency_ns
        return MappingProxyType(
            {name: _frozen(self.by_unit(latency_ns(name))) for name in self.classes}
        )

    @cached_property
    def fastest_ns(self) -> Ints:
        """The execution time of every unit on its fastest class."""
        least: Ints = np.min(list(self.work_ns.values()), axis=0)
        return _frozen(least)

    @cached_property
    def slowest_ns(self) -> Ints:
        """The execution time of every unit on its slowest class."""
        most: Ints = np.max(list(self.work_ns.values()), axis=0)
        return _frozen(most)

    @cached_property
    def slowness(self) -> Mapping[str, float]:
        """By class, the least ratio of a unit's time there to its time on its fastest class."""
        return MappingProxyType({name: min(ratios) for name, ratios in self._ratios.items()})

    @cached_property
    def most_slowness(self) -> float:
        """The largest ratio of a unit's time on any class to its time on its fastest one."""
        return max(max(ratios) for ratios in self._ratios.values())

    @cached_property
    def _ratios(self) -> dict[str, tuple[float, float]]:
        busy = self.fastest_ns > 0
        if not busy.any():
            return dict.fromkeys(self.classes, (1.0, 1.0))
        ratios = {name: own[busy] / self.fastest_ns[busy] for name, own in self.work_ns.items()}
        return {name: (float(each.min()), float(each.max())) for name, each in ratios.items()}

    @cached_property
    def first_weights(self) -> Ints:
        """Bytes of weights by unit; those of several units at the first."""
        return self._weights_at(0)

    @cached_property
    def last_weights(self) -> Ints:
        """Bytes of weights by unit; those of several units at the last."""
        return self._weights_at(-1)

    def _weights_at(self, place: int) -> Ints:
        held = np.zeros(len(self), dtype=np.int64)
        for entry in self.weights:
            held[entry.units[place]] += entry.size_bytes
        return _frozen(held)

    @property
    def direct_nets(self) -> tuple[Net, ...]:
        """Values that stages receive from where they are made: none if they are relayed."""
        return () if self.relays else self.nets

    @property
    def sent_nets(self) -> tuple[Net, ...]:
        """Values that stages send to each device that reads them, neither staged nor relayed."""
        return () if self.transfers.sends_once else self.nets

    @property
    def depends_on_count(self) -> bool:
        """True if memory or relays of a stage depend on the number of devices in use."""
        problem = self.problem
        has_steps = "step" in problem.objective
        return self.transfers.hops or has_steps or problem.memory_depends_on_followers

    @property
    def moves_freely(self) -> bool:
        """True if the cost of a plan does not depend on the numbers of its stages."""
        return not (self.problem.stage_pins or self.transfers.hops)

    @cached_property
    def transfers(self) -> Transfers:
        """Transfers between devices, and their costs."""
        return Transfers(self.problem, self.relays or self.nets)

    @cached_property
    def unit_of_operator(self) -> tuple[int, ...]:
        """The unit of every operator, by operator index."""
        unit_of = {index: unit for unit, own in enumerate(self.members) for index in own}
        return tuple(unit_of.get(index, 0) for index in range(len(self.problem.operators)))

    @property
    def pins_contradict(self) -> bool:
        """True if operators that must share a device are pinned to different ones."""
        return any(allowed is not None and not allowed for allowed in self.allowed_devices)

    def banned(self, device: Device) -> Bools:
        """Return, by unit, True if it may not run on a device."""
        allowed = self.allowed_devices
        return np.array([own is not None and device.name not in own for own in allowed])

    def by_unit(self, values: Ints) -> Ints:
        """Return the sum of values, by operator, over the operators of each unit."""
        order = np.array([index for members in self.members for index in members], dtype=np.int64)
        unit_of = np.repeat(np.arange(len(self)), list(map(len, self.members)))
        return sums(unit_of, values[order], len(self))

    def narrowed(self, first: Sequence[int], last: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return windows (the first and last place of each unit) without places that arcs exclude.

        Neither end falls along an arc.
        """
        least, most = list(first), list(last)
        for unit, before in enumerate(self.predecessors):
            least[unit] = max([least[unit], *(least[other] for other in before)])
        for unit in reversed(range(len(self))):
            most[unit] = min([most[unit], *(most[other] for other in self.successors[unit])])
        return least, most

    def lowered(self, values: Mapping[str, _Value]) -> list[_Value]:
        """Return a value for each unit, such as its device, given one for each operator."""
        operators = self.problem.operators
        return [values[operators[members[0]].name] for members in self.members]

    def lift(self, values: Sequence[_Value]) -> dict[str, _Value]:
        """Return a value for each operator, such as its device, given one for each unit."""
        return {
            op.name: values[unit]
            for op, unit in zip(self.problem.operators, self.unit_of_operator, strict=True)
        }


def _frozen(values: npt.ArrayLike) -> Ints:
    array = np.array(values, dtype=np.int64)
    array.setflags(write=False)
    return array


@shared_while_held
def condense(problem: PartitionProblem) -> Instance:
    """Merge operators that must share a device, and data with proportional costs.

    Proof that no plan is lost and no cost changes:

    * *Colocation groups* that overlap share a device by definition.
    * *Strongly connected units*: if forward edges lead from unit a to b and back, then in a
      feasible plan stage(a) <= stage(b) <= stage(a), so both are on one device.
    * *Nets*: two values with the same producing unit and the same consuming units cross
      exactly the same pairs of devices in every plan, so their bytes and times add up. Relayed,
      they cross the same borders, if neither or both of them are returned by the graph.
    * *Shared bytes*: two weights with the same reading units are held by exactly the same
      devices in every plan, and the bytes saved by the operators of a unit are on the unit's.

    If operators may be recomputed, `saved` and `storages` are the bytes held with any choice
    (:func:`solver.model.holdings.least_holdings`), so that bounds hold for any choice.
    """
    blocks = operator_blocks(problem)
    number_of = {name: unit for unit, block in enumerate(blocks) for name in block}
    unit_of = [number_of[op.name] for op in problem.operators]
    members = [sorted(map(problem.index_of.__getitem__, block)) for block in blocks]
    pins = [
        [pin for index in own if (pin := problem.operators[index].allowed_devices) is not None]
        for own in members
    ]
    held = {key: weight.held_bytes(problem.memory_model) for key, weight in problem.weights.items()}
    return Instance(
        problem=problem,
        members=tuple(map(tuple, members)),
        edges=tuple(sorted(set(forward_arcs(problem, number_of)))),
        allowed_devices=tuple(frozenset.intersection(*own) if own else None for own in pins),
        nets=_nets(problem, unit_of, relayed=False),
        input_nets=_input_nets(problem, unit_of),
        relays=_nets(problem, unit_of, relayed=True) if Transfers(problem).hops else (),
        weights=_shared(held, unit_of, [op.weights for op in problem.operators]),
        saved=_saved(problem, members),
        storages=_storages(problem, unit_of),
    )


def _reading_units(
    problem: PartitionProblem, unit_of: list[int], name: str, own: int
) -> tuple[int, ...]:
    readers = {unit_of[problem.index_of[reader]] for reader in problem.readers_of[name]}
    return tuple(sorted(readers - {own}))


def _nets(problem: PartitionProblem, unit_of: list[int], *, relayed: bool) -> tuple[Net, ...]:
    """Return the nets of values; if `relayed`, returned ones go to the end."""
    merged: dict[tuple[int, tuple[int, ...], bool], list[int]] = {}
    for index, op in enumerate(problem.operators):
        to_end = relayed and op.is_output
        # A returned value is relayed to the end, whatever reads it on the way.
        consumers = () if to_end else _reading_units(problem, unit_of, op.name, unit_of[index])
        if consumers or to_end:
            merged.setdefault((unit_of[index], consumers, to_end), []).append(index)
    arrays = problem.arrays
    sent_bytes = arrays.value_bytes + arrays.gradient_bytes
    return tuple(
        Net(
            producer=producer,
            consumers=consumers,
            operators=tuple(indices),
            value_bytes=int(sent_bytes[indices].sum()),
            held_bytes=int(arrays.held_bytes[indices].sum()),
            is_output=to_end,
            returned_bytes=int(arrays.returned_bytes[indices].sum()) if relayed else 0,
        )
        for (producer, consumers, to_end), indices in merged.items()
    )


def _input_nets(problem: PartitionProblem, unit_of: list[int]) -> tuple[Net, ...]:
    merged: dict[tuple[int, ...], int] = {}
    sizes = problem.arrays.held_bytes[len(problem.operators) :].tolist()
    for graph_input, held_bytes in zip(problem.inputs, sizes, strict=True):
        consumers = _reading_units(problem, unit_of, graph_input.name, -1)
        if consumers:
            merged[consumers] = merged.get(consumers, 0) + held_bytes
    return tuple(
        Net(producer=-1, consumers=consumers, operators=(), value_bytes=0, held_bytes=held_bytes)
        for consumers, held_bytes in merged.items()
        if held_bytes
    )


def _shared(
    size_bytes: Mapping[str, int], unit_of: list[int], keys_of: list[tuple[str, ...]]
) -> tuple[SharedBytes, ...]:
    units: dict[str, set[int]] = {}
    for index, keys in enumerate(keys_of):
        for key in keys:
            units.setdefault(key, set()).add(unit_of[index])
    merged: dict[tuple[int, ...], int] = {}
    for key, readers in units.items():
        reading = tuple(sorted(readers))
        merged[reading] = merged.get(reading, 0) + size_bytes[key]
    return tuple(SharedBytes(reading, total) for reading, total in merged.items() if total)


def _saved(problem: PartitionProblem, members: list[list[int]]) -> tuple[SharedBytes, ...]:
    sizes = np.array(problem.least_saved_bytes, dtype=np.int64)
    totals = [int(sizes[indices].sum()) for indices in members]
    return tuple(SharedBytes((unit,), total) for unit, total in enumerate(totals) if total)


def _storages(problem: PartitionProblem, unit_of: list[int]) -> tuple[Storage, ...]:
    return tuple(
        Storage(
            unit=(unit := unit_of[holding.operator]),
            first=holding.first,
            last=holding.last,
            readers=tuple(sorted({unit_of[index] for index in holding.waits_for} - {unit})),
            is_output=holding.stays,
            size_bytes=holding.size_bytes,
        )
        for holding in problem.least_holdings
    )
