"""The size-based heuristic of ``torch.fx.experimental.accelerator_partitioner``, as the baseline.

The algorithm is that of torch 2.13 (``Partitioner.size_based_partition``, the combining of
``sparse_nn_partition``, and ``get_device_to_partitions_mapping``), on the operator graph:

1. If everything fits on the largest device, it goes there.
2. Otherwise partitions grow in execution order. Each takes the largest free device and is filled
   until the next operators do not fit. When no device is free, further partitions are grown to
   the size of the largest device.
3. The smallest partition is combined with the largest one whose BFS level differs by at most 1
   and with which it fits, until none is left to combine.
4. Partitions are mapped to devices, the largest first, each to the device with just enough
   memory. Those without a device join the one where they fit with the least to spare, or, where
   they fit nowhere, the one that they overfill least.

It considers sizes alone: latencies and transfers cost nothing, as in torch.

It differs from torch's in these points:

* The size of a partition is the evaluator's memory of a stage with its operators
  (:func:`solver.evaluation.evaluate.stage_memory_bytes`): buffers, tuples and tied weights counted
  right, an input of several readers counted once, storages freed after their last reader, views
  free. Torch adds up the outputs of all nodes, and counts parameters in the dtype of the output.
* An exact fit is a fit; devices may differ in memory in every step. A merge that would spoil a
  mapping to unequal devices is not made.
* Operators that must share a device (colocation, and every path between them) stay whole; pins
  are kept as far as the algorithm can.
* BFS levels are lengths of longest paths. So a path between partitions of levels that differ by at
  most 1 is a single arc, and combining two of them cannot close a cycle.
* In step 4 a device that keeps the stages free of cycles is preferred; torch does not check.
* With a limit on the number of devices it takes the largest ones that pins allow.
* Cuts and pinned stages are ignored; the evaluator reports those that a plan breaks.
* It never raises. The answer is total even where nothing fits, and the evaluator judges it: when
  it breaks memory, a pin, or acyclicity, its status is UNKNOWN and the plan is kept for the report.

Under 1F1B a partition is sized as if all devices were used, with the most microbatches in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import networkx as nx

from solver.evaluation.evaluate import stage_memory_bytes
from solver.model.cuts import without_hand_made
from solver.model.devices import Device, Link
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.presolve.operator_blocks import forward_arcs, operator_blocks

_SPARE_PARTITIONS: Final = 16
"""Partitions kept separate beyond the number of devices, in the hope of combining them. The rest
becomes one more: it fits nowhere, and the work stays near linear.
"""


@dataclass(frozen=True, slots=True)
class _Partition:
    """Operators that will share a device.

    `first` is the position of its first block; `allowed` the devices that all of them may use.
    """

    first: int
    operators: tuple[str, ...]
    allowed: frozenset[str]
    in_flight: int
    size_bytes: int

    def fits(self, device: Device) -> bool:
        return device.name in self.allowed and (
            device.memory_bytes is None or self.size_bytes <= device.memory_bytes
        )


def greedy_plan(problem: PartitionProblem) -> PartitionPlan:
    """Place operators by size, in execution order.

    Takes near-linear time, on one thread, without random choices. The plan is total even where
    nothing fits; the evaluator reports its violations.

    Examples
    --------
    >>> from solver.model.operators import Operator
    >>> from solver import Device, Weight
    >>> problem = PartitionProblem(
    ...     operators=(
    ...         Operator("a", weights=("w",)),
    ...         Operator("b", reads=("a",), weights=("w",)),
    ...         Operator("c", reads=("b",), weights=("v",)),
    ...     ),
    ...     devices=(Device("gpu0", memory_bytes=100), Device("gpu1", memory_bytes=100)),
    ...     weights={"w": Weight(80), "v": Weight(60)},
    ... )
    >>> dict(greedy_plan(problem).assignment)
    {'a': 'gpu0', 'b': 'gpu0', 'c': 'gpu1'}
    """
    assignment = _single_device(problem)
    if assignment is None:
        narrowed = _narrowed(without_hand_made(problem))
        partitions = _combine(narrowed, _grow(narrowed))
        assignment = _place(narrowed, partitions)
    ordered = {op.name: assignment[op.name] for op in problem.operators}
    return PartitionPlan.from_assignment(problem, ordered)


def _narrowed(problem: PartitionProblem) -> PartitionProblem:
    """Return the problem with at most `max_devices` devices: the largest that pins allow.

    Devices that meet the most pins come first (the greedy algorithm for hitting sets), then the
    largest. Where these cannot meet all pins, all devices are left, and the evaluator judges.
    """
    most = problem.max_devices
    if most is None or most >= len(problem.devices):
        return problem
    everywhere = frozenset(problem.device_of)
    groups = (*operator_blocks(problem), *problem.units)
    allowed_of = [_allowed(problem, group) or everywhere for group in groups]
    open_pins = [allowed for allowed in allowed_of if allowed != everywhere]
    rest = _largest_first(problem.devices)
    chosen: set[str] = set()
    while len(chosen) < most:
        device = max(rest, key=lambda device: sum(device.name in pins for pins in open_pins))
        rest.remove(device)
        chosen.add(device.name)
        open_pins = [pins for pins in open_pins if device.name not in pins]
    if open_pins:
        return problem
    return problem.replace(
        devices=tuple(device for device in problem.devices if device.name in chosen),
        # A unit whose pins have no device in common was given up above, and goes anywhere.
        operators=tuple(
            op
            if op.allowed_devices is None
            else replace(op, allowed_devices=op.allowed_devices & chosen or None)
            for op in problem.operators
        ),
        # Links may name devices that are left out; sizes alone count here.
        interconnect=replace(problem.interconnect, default=Link(), links={}, overlap=False),
        max_devices=None,
    )


def _largest_first(devices: Iterable[Device]) -> list[Device]:
    return sorted(devices, key=lambda d: (d.memory_bytes is not None, -(d.memory_bytes or 0)))


def _single_device(problem: PartitionProblem) -> dict[str, str] | None:
    """Step 1: everything on the largest device that may run it, if it fits there."""
    names = [op.name for op in problem.operators]
    allowed = _allowed(problem, names)
    # A stage alone has one microbatch in flight under 1F1B.
    count = problem.in_flight_of(1, 0)
    partition = _Partition(
        0, tuple(names), allowed, count, stage_memory_bytes(problem, names, count)
    )
    for device in _largest_first(problem.devices):
        if partition.fits(device):
            return dict.fromkeys(names, device.name)
    return None


def _allowed(problem: PartitionProblem, names: Iterable[str]) -> frozenset[str]:
    allowed = frozenset(problem.device_of)
    for name in names:
        own = problem.operators[problem.index_of[name]].allowed_devices
        if own is not None:
            allowed &= own
    return allowed


def _grow(problem: PartitionProblem) -> list[_Partition]:
    """Step 2: fill one free device after another, the largest first, in execution order."""
    blocks = operator_blocks(problem)
    everywhere = frozenset(problem.device_of)
    # A cycle of units whose pins have no device in common is infeasible, and goes anywhere.
    allowed_of = [_allowed(problem, block) or everywhere for block in blocks]
    free = _largest_first(problem.devices)
    partitions: list[_Partition] = []
    start = 0
    while start < len(blocks):
        rest = len(partitions) == len(problem.devices) + _SPARE_PARTITIONS
        device = next((device for device in free if device.name in allowed_of[start]), None)
        if device is not None:
            free.remove(device)
            allowed = frozenset([device.name])
        else:
            allowed = allowed_of[start]
            device = _largest_first(problem.device_of[name] for name in sorted(allowed))[0]
        stages_left = max(1, len(problem.devices) - len(partitions))
        count = problem.in_flight_of(len(problem.devices), stages_left - 1)

        # Blocks up to the first that may not run on this device.
        limit = start
        common = allowed
        while limit < len(blocks) and (common := common & allowed_of[limit]):
            limit += 1
        end = len(blocks)
        if not rest:
            end = _fill(problem, blocks, start, limit, device.memory_bytes, count)
        names = tuple(name for block in blocks[start:end] for name in block)
        allowed = _allowed(problem, names) or everywhere
        size_bytes = stage_memory_bytes(problem, names, count)
        partitions.append(_Partition(start, names, allowed, count, size_bytes))
        start = end
    return partitions


def _fill(
    problem: PartitionProblem,
    blocks: Sequence[tuple[str, ...]],
    start: int,
    limit: int,
    capacity_bytes: int | None,
    count: int,
) -> int:
    """Return the end of the blocks from `start` that fit, at least one and none from `limit` on.

    Steps double and then halve, so that all partitions together take near-linear time.
    """
    if capacity_bytes is None:
        return limit

    def fits(end: int) -> bool:
        names = [name for block in blocks[start:end] for name in block]
        return stage_memory_bytes(problem, names, count) <= capacity_bytes

    good = start + 1
    step = 1
    while good + step <= limit and fits(good + step):
        good += step
        step *= 2
    while step:
        if good + step <= limit and fits(good + step):
            good += step
        step //= 2
    return good


def _combine(problem: PartitionProblem, partitions: list[_Partition]) -> list[_Partition]:
    """Step 3: combine the smallest partition with the largest with which it fits."""
    arcs = _arcs(problem, partitions)
    while True:
        level = _levels([p.first for p in partitions], arcs)
        smallest, *others = sorted(partitions, key=lambda p: (p.size_bytes, p.first))
        for other in reversed(others):
            if abs(level[smallest.first] - level[other.first]) > 1:
                continue
            merged = _merge(problem, smallest, other)
            if not any(merged.fits(device) for device in problem.devices):
                continue
            kept = [p for p in partitions if p is not smallest and p is not other]
            candidate = sorted([*kept, merged], key=lambda p: p.first)
            if len(_match(problem, partitions)) == len(partitions) and len(
                _match(problem, candidate)
            ) < len(candidate):
                continue
            gone = max(smallest.first, other.first)
            new_ends = {gone: merged.first}
            moved = ((new_ends.get(a, a), new_ends.get(b, b)) for a, b in arcs)
            arcs = frozenset((a, b) for a, b in moved if a != b)
            partitions = candidate
            break
        else:
            return partitions


def _arcs(
    problem: PartitionProblem, partitions: Sequence[_Partition]
) -> frozenset[tuple[int, int]]:
    """Return the pairs of partitions, by `first`, connected by a forward edge."""
    first_of = {name: p.first for p in partitions for name in p.operators}
    return frozenset(forward_arcs(problem, first_of))


def _merge(problem: PartitionProblem, one: _Partition, other: _Partition) -> _Partition:
    names = one.operators + other.operators
    count = max(one.in_flight, other.in_flight)
    size_bytes = stage_memory_bytes(problem, names, count)
    first = min(one.first, other.first)
    return _Partition(first, names, one.allowed & other.allowed, count, size_bytes)


def _levels(nodes: Iterable[int], arcs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the number of arcs on the longest path to each node."""
    graph = nx.DiGraph(arcs)
    graph.add_nodes_from(nodes)
    levels = enumerate(nx.topological_generations(graph))
    return {node: level for level, generation in levels for node in generation}


def _match(problem: PartitionProblem, partitions: Sequence[_Partition]) -> dict[str, _Partition]:
    """Return a maximum matching of partitions by device, larger ones first.

    Each tries the devices with the least memory first. Augmenting paths (Kuhn) move earlier ones
    where pins require it.
    """
    devices = list(reversed(_largest_first(reversed(problem.devices))))
    matched: dict[str, _Partition] = {}

    def place(partition: _Partition, tried: set[str]) -> bool:
        options = [device.name for device in devices if partition.fits(device)]
        # A free device before one whose partition would have to move.
        for name in sorted(options, key=lambda name: name in matched):
            if name in tried:
                continue
            tried.add(name)
            if name not in matched or place(matched[name], tried):
                matched[name] = partition
                return True
        return False

    for partition in sorted(partitions, key=lambda p: (-p.size_bytes, p.first)):
        place(partition, set())
    return matched


def _place(problem: PartitionProblem, partitions: Sequence[_Partition]) -> dict[str, str]:
    """Step 4: map partitions to devices, and the rest to where it does the least harm."""
    on_device: dict[str, _Partition] = dict(_match(problem, partitions))
    device_of = {p.first: device for device, p in on_device.items()}
    arcs = _arcs(problem, partitions)
    for partition in partitions:
        if partition.first in device_of:
            continue
        options: list[tuple[tuple[bool, int, bool, int], str, _Partition]] = []
        for device in problem.devices:
            if device.name not in partition.allowed:
                continue
            joined = partition
            if device.name in on_device:
                joined = _merge(problem, partition, on_device[device.name])
            cyclic = not _acyclic(arcs, {**device_of, partition.first: device.name})
            is_unlimited = device.memory_bytes is None
            spare = 0 if device.memory_bytes is None else device.memory_bytes - joined.size_bytes
            rank = (cyclic, max(0, -spare), is_unlimited, spare)
            options.append((rank, device.name, joined))
        # The first of equals, so that the answer is deterministic.
        _, name, joined = min(options, key=lambda option: option[0])
        on_device[name] = joined
        device_of[partition.first] = name
    return {name: device_of[p.first] for p in partitions for name in p.operators}


def _acyclic(arcs: Iterable[tuple[int, int]], device_of: Mapping[int, str]) -> bool:
    """Return True if the stages of the partitions placed so far are free of cycles."""
    quotient = nx.DiGraph(
        (device_of[source], device_of[target])
        for source, target in arcs
        if source in device_of and target in device_of and device_of[source] != device_of[target]
    )
    return bool(nx.is_directed_acyclic_graph(quotient))
