"""Lossless reductions: a problem restated on units that must share a device.

Nothing here changes the set of feasible plans or any cost; each function's docstring
proves it. :meth:`Instance.lift` turns an assignment of units back into a plan's assignment.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from solver.model.arrays import Bools, Ints, sums
from solver.model.devices import Device
from solver.model.problem import PartitionProblem
from solver.model.sharing import shared_while_held
from solver.presolve.graph import neighbours, quotient_arcs
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
    """A :class:`solver.model.holdings.Holding` in terms of units."""

    unit: int  # the unit of its operator
    first: int  # positions in the execution order
    last: int
    readers: tuple[int, ...]  # other units for which it waits, ascending
    is_output: bool  # it stays until the stage ends, in any plan
    size_bytes: int


@dataclass(frozen=True)
class Instance:
    """The problem on units, with derived data; units are in a topological order.

    Derived data are computed on first use; arrays are read-only.
    """

    problem: PartitionProblem
    members: tuple[tuple[int, ...], ...]  # operator indices of each unit, in execution order
    edges: tuple[tuple[int, int], ...]  # forward arcs between different units, ascending
    allowed_devices: tuple[frozenset[str] | None, ...]
    """For each unit the devices that all its members allow; None allows all. An empty set makes the
    problem infeasible."""
    nets: tuple[Net, ...]  # values of units that other units read
    input_nets: tuple[Net, ...]  # values of the caller that units read
    relays: tuple[Net, ...]  # relayed values, instead of `nets`; empty under other charging
    weights: tuple[SharedBytes, ...]
    saved: tuple[SharedBytes, ...]  # kept for one microbatch, in training
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
    unit_of = {name: unit for unit, block in enumerate(blocks) for name in block}
    units = [unit_of[op.name] for op in problem.operators]
    return contract(_of_operators(problem), units, len(blocks))


def _of_operators(problem: PartitionProblem) -> Instance:
    """Return an instance with a unit for each operator, whose arcs may form circles."""
    operators, arrays = problem.operators, problem.arrays
    number = problem.index_of.__getitem__
    readers = {name: tuple(map(number, names)) for name, names in problem.readers_of.items()}
    sent_bytes = (arrays.value_bytes + arrays.gradient_bytes).tolist()
    held_bytes, returned_bytes = arrays.held_bytes.tolist(), arrays.returned_bytes.tolist()
    nets = tuple(
        Net(index, readers[op.name], (index,), sent_bytes[index], held_bytes[index])
        for index, op in enumerate(operators)
    )
    # A returned value is relayed to the end, whatever reads it on the way.
    relays = (
        replace(net, consumers=(), is_output=True, returned_bytes=size_bytes)
        if op.is_output
        else replace(net, returned_bytes=size_bytes)
        for net, op, size_bytes in zip(nets, operators, returned_bytes, strict=True)
    )
    inputs = zip(problem.inputs, held_bytes[len(operators) :], strict=True)
    users: dict[str, list[int]] = {}
    for index, op in enumerate(operators):
        for key in op.weights:
            users.setdefault(key, []).append(index)
    return Instance(
        problem=problem,
        members=tuple((index,) for index in range(len(operators))),
        edges=tuple(forward_arcs(problem, problem.index_of)),
        allowed_devices=tuple(op.allowed_devices for op in operators),
        nets=nets,
        input_nets=tuple(Net(-1, readers[own.name], (), 0, size) for own, size in inputs if size),
        relays=tuple(relays) if Transfers(problem).hops else (),
        weights=tuple(
            SharedBytes(tuple(own), problem.weights[key].held_bytes(problem.memory_model))
            for key, own in users.items()
        ),
        saved=tuple(SharedBytes((n,), size) for n, size in enumerate(problem.least_saved_bytes)),
        storages=tuple(
            Storage(
                held.operator, held.first, held.last, held.waits_for, held.stays, held.size_bytes
            )
            for held in problem.least_holdings
        ),
    )


def contract(units: Instance, cluster_of: Sequence[int], count: int) -> Instance:
    """Return the graph of clusters of units, numbered as they are in `cluster_of`.

    It describes fewer plans, each with exactly its costs on the units.
    """
    members: list[list[int]] = [[] for _ in range(count)]
    allowed: list[frozenset[str] | None] = [None] * count
    for unit, name in enumerate(cluster_of):
        members[name].extend(units.members[unit])
        own = units.allowed_devices[unit]
        if own is not None:
            both = allowed[name]
            allowed[name] = own if both is None else own & both
    return replace(
        units,
        members=tuple(tuple(sorted(m)) for m in members),
        edges=quotient_arcs(units.edges, cluster_of),
        allowed_devices=tuple(allowed),
        nets=_contracted(units.nets, cluster_of),
        relays=_contracted(units.relays, cluster_of),
        input_nets=_contracted(units.input_nets, cluster_of),
        weights=_shared(units.weights, cluster_of),
        saved=_shared(units.saved, cluster_of),
        storages=tuple(
            replace(
                held,
                unit=(unit := cluster_of[held.unit]),
                readers=tuple(sorted({cluster_of[reader] for reader in held.readers} - {unit})),
            )
            for held in units.storages
        ),
    )


def _contracted(nets: Sequence[Net], cluster_of: Sequence[int]) -> tuple[Net, ...]:
    """Return the nets between clusters, merged by their ends."""
    merged: dict[tuple[int, tuple[int, ...], bool], list[Net]] = {}
    for net in nets:
        producer = -1 if net.producer < 0 else cluster_of[net.producer]
        consumers = tuple(sorted({cluster_of[c] for c in net.consumers} - {producer}))
        if consumers or net.is_output:
            merged.setdefault((producer, consumers, net.is_output), []).append(net)
    return tuple(
        Net(
            producer,
            consumers,
            tuple(index for net in same for index in net.operators),
            sum(net.value_bytes for net in same),
            sum(net.held_bytes for net in same),
            is_output,
            sum(net.returned_bytes for net in same),
        )
        for (producer, consumers, is_output), same in merged.items()
    )


def _shared(entries: Sequence[SharedBytes], cluster_of: Sequence[int]) -> tuple[SharedBytes, ...]:
    merged: dict[tuple[int, ...], int] = {}
    for entry in entries:
        names = tuple(sorted({cluster_of[unit] for unit in entry.units}))
        merged[names] = merged.get(names, 0) + entry.size_bytes
    return tuple(SharedBytes(names, size) for names, size in merged.items() if size)
