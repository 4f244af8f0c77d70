"""Lossless reductions: a problem restated on units that must share a device.

Nothing here changes the set of feasible plans or any cost; each function's docstring
proves it. :meth:`Instance.lift` turns an assignment of units back into a plan's assignment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from solver.model.arrays import Ints
from solver.model.problem import PartitionProblem
from solver.model.sharing import shared_while_held
from solver.presolve.transfers import Net, Transfers


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
        It stays until the stage ends, wherever others are.
    """

    unit: int
    first: int
    last: int
    readers: tuple[int, ...]
    is_output: bool
    size_bytes: int


@dataclass(frozen=True)
class Instance:
    """The problem on units, with what follows from it; units are in a topological order.

    What is derived is made once, on first use; arrays are read-only.

    Attributes
    ----------
    members : tuple of tuple of int
        Operator indices of each unit, in execution order.
    edges : tuple of (int, int)
        Forward arcs between different units.
    allowed_devices : tuple
        For each unit the devices that all its members allow; None allows all. An empty set
        makes the problem infeasible.
    nets, input_nets : tuple of Net
        Values of units, and of the caller, that other units read.
    relays : tuple of Net
        What crosses where values are relayed, instead of `nets`; else empty.
    weights, saved : tuple of SharedBytes
        `saved` is what one microbatch keeps, in training.
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
        return _neighbours(len(self), self.edges)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """The units that each unit reads from, ascending."""
        return _neighbours(len(self), [(target, source) for source, target in self.edges])

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes of all devices, sorted."""
        return tuple(sorted({device.device_class for device in self.problem.devices}))

    @cached_property
    def work_ns(self) -> Mapping[str, Ints]:
        """The execution time of every unit on each class, in training with its backward pass."""
        return MappingProxyType({name: _frozen(self.latency_ns(name)) for name in self.classes})

    @cached_property
    def fastest_ns(self) -> Ints:
        """The execution time of every unit on its fastest class."""
        least: Ints = np.min(list(self.work_ns.values()), axis=0)
        return _frozen(least)

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
        """The least and the largest ratio, by class."""
        busy = self.fastest_ns > 0
        if not busy.any():
            return dict.fromkeys(self.classes, (1.0, 1.0))
        ratios = {name: own[busy] / self.fastest_ns[busy] for name, own in self.work_ns.items()}
        return {name: (float(each.min()), float(each.max())) for name, each in ratios.items()}

    @cached_property
    def transfers(self) -> Transfers:
        """What moves between devices, and what that costs them."""
        return Transfers(self.problem, self.relays or self.nets)

    @property
    def pins_contradict(self) -> bool:
        """Whether operators that must share a device are pinned to different ones."""
        return any(allowed is not None and not allowed for allowed in self.allowed_devices)

    def latency_ns(self, device_class: str) -> list[int]:
        """Return the execution time of every unit on a device class."""
        times: list[int] = self.problem.arrays.latency_ns(device_class).tolist()
        return [sum(times[index] for index in members) for members in self.members]

    def pass_latency_ns(self, device_class: str) -> tuple[list[int], list[int]]:
        """Return the time of every unit's forward and backward pass on a device class."""
        forward, backward = (
            times.tolist() for times in self.problem.arrays.pass_latency_ns(device_class)
        )
        return (
            [sum(forward[index] for index in members) for members in self.members],
            [sum(backward[index] for index in members) for members in self.members],
        )

    def lift(self, device_of_unit: Sequence[str]) -> dict[str, str]:
        """Return the assignment of operators that puts each unit on its device."""
        unit_of = self.unit_of_operator()
        return {
            op.name: device_of_unit[unit_of[index]]
            for index, op in enumerate(self.problem.operators)
        }

    def unit_of_operator(self) -> list[int]:
        """Return the unit of every operator, by operator index."""
        unit_of = [0] * len(self.problem.operators)
        for unit, members in enumerate(self.members):
            for index in members:
                unit_of[index] = unit
        return unit_of


def _neighbours(count: int, arcs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return where the arcs of each unit lead, ascending."""
    found: list[list[int]] = [[] for _ in range(count)]
    for source, target in arcs:
        found[source].append(target)
    return tuple(tuple(sorted(targets)) for targets in found)


def _frozen(values: npt.ArrayLike) -> Ints:
    array = np.array(values, dtype=np.int64)
    array.setflags(write=False)
    return array


@shared_while_held
def condense(problem: PartitionProblem) -> Instance:
    """Merge what must share a device, and what always costs together.

    Proof that no plan is lost and no cost changes:

    * *Colocation groups* that overlap share a device by definition.
    * *Strongly connected units*: if forward edges lead from unit a to b and back, then in a
      feasible plan stage(a) <= stage(b) <= stage(a), so both are on one device.
    * *Nets*: two values with the same producing unit and the same consuming units cross
      exactly the same pairs of devices in every plan, so their bytes and times add up. Relayed,
      they cross the same borders, if neither or both of them are returned by the graph.
    * *Shared bytes*: two weights with the same reading units are held by exactly the same
      devices in every plan, and what the operators of a unit save is kept by the unit's.
    """
    unit_of, count, edges = _units(problem)
    members: list[list[int]] = [[] for _ in range(count)]
    allowed: list[frozenset[str] | None] = [None] * count
    for index, op in enumerate(problem.operators):
        unit = unit_of[index]
        members[unit].append(index)
        if op.allowed_devices is not None:
            own = allowed[unit]
            allowed[unit] = op.allowed_devices if own is None else own & op.allowed_devices
    held = {key: weight.held_bytes(problem.memory_model) for key, weight in problem.weights.items()}
    return Instance(
        problem=problem,
        members=tuple(map(tuple, members)),
        edges=edges,
        allowed_devices=tuple(allowed),
        nets=_nets(problem, unit_of, relayed=False),
        input_nets=_input_nets(problem, unit_of),
        relays=_nets(problem, unit_of, relayed=True) if Transfers(problem).hops else (),
        weights=_shared(held, unit_of, [op.weights for op in problem.operators]),
        saved=_saved(problem, members),
        storages=_storages(problem, unit_of),
    )


def _units(problem: PartitionProblem) -> tuple[list[int], int, tuple[tuple[int, int], ...]]:
    """Return the unit of each operator, the number of units, and the arcs between units."""
    # It takes longer to load than the rest of the library together.
    import networkx as nx

    group_of = [0] * len(problem.operators)
    for group, names in enumerate(problem.units):
        for name in names:
            group_of[problem.index_of[name]] = group
    contracted = nx.DiGraph()
    contracted.add_nodes_from(range(len(problem.units)))
    for index, op in enumerate(problem.operators):
        if op.is_backward:
            continue
        for read in op.reads:
            source = problem.index_of.get(read)
            if source is None or problem.operators[source].is_backward:
                continue
            if group_of[source] != group_of[index]:
                contracted.add_edge(group_of[source], group_of[index])
    component_of: dict[int, int] = {}
    for component, groups in enumerate(nx.strongly_connected_components(contracted)):
        for group in groups:
            component_of[group] = component
    count = len(set(component_of.values()))
    arcs = {
        (component_of[source], component_of[target])
        for source, target in contracted.edges
        if component_of[source] != component_of[target]
    }
    # Number components in the topological order closest to the execution order.
    first = [len(problem.operators)] * count
    for index in range(len(problem.operators)):
        component = component_of[group_of[index]]
        first[component] = min(first[component], index)
    successors: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in arcs:
        successors[source].append(target)
        waiting[target] += 1
    ready = [(first[c], c) for c in range(count) if not waiting[c]]
    heapq.heapify(ready)
    number = [0] * count
    for position in range(count):
        _, component = heapq.heappop(ready)
        number[component] = position
        for target in successors[component]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, (first[target], target))
    unit_of = [number[component_of[group]] for group in group_of]
    edges = sorted((number[source], number[target]) for source, target in arcs)
    return unit_of, count, tuple(edges)


def _reading_units(
    problem: PartitionProblem, unit_of: list[int], name: str, own: int
) -> tuple[int, ...]:
    readers = {unit_of[problem.index_of[reader]] for reader in problem.readers_of[name]}
    return tuple(sorted(readers - {own}))


def _nets(problem: PartitionProblem, unit_of: list[int], *, relayed: bool) -> tuple[Net, ...]:
    """Return the nets of values; if `relayed` those that the graph returns go to the end."""
    merged: dict[tuple[int, tuple[int, ...], bool], list[int]] = {}
    for index, op in enumerate(problem.operators):
        to_end = relayed and op.is_output
        # What goes to the end does so whoever reads it on the way.
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
    sizes = problem.arrays.saved_bytes
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
        for holding in problem.holdings
    )
