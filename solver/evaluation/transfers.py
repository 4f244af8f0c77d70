"""Compute and transfer times of stages for each microbatch, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.evaluation.layout import Layout
from solver.evaluation.relays import Hops
from solver.model.arrays import Ints, sums, unique_pairs
from solver.model.devices import STAGING_HOST
from solver.model.problem import PartitionProblem
from solver.model.recomputation import Recomputation


@dataclass(frozen=True, slots=True)
class Passes:
    """Compute time of both passes, by operator or by place (:mod:`solver.evaluation.layout`)."""

    forward_ns: Ints
    backward_ns: Ints


@dataclass(frozen=True, slots=True)
class Moves:
    """The transfers of a plan that cost a device time.

    `source` and `target` are places, both of which spend the time; -1 is the staging memory of the
    host. A value that several stages of a device read is received by the first of them. Times are
    those of a value and of its gradient in the opposite direction.
    """

    source: Ints
    target: Ints
    value: Ints
    """Producers of the values."""
    forward_ns: Ints
    gradient_ns: Ints
    arcs: list[tuple[int, int]]
    """Pairs of places with a transfer between them, through the host or not."""
    sent: Ints
    """Producer of the value of each transfer between devices, through the host or not."""
    transfer_bytes: int
    """Total in both directions."""


def stage_passes(problem: PartitionProblem, layout: Layout, recomputation: Recomputation) -> Passes:
    """Return the compute times of each place; 0 where it only relays."""
    by_operator = operator_passes(problem, layout, recomputation)
    stage, count = layout.stage[: len(problem.operators)], len(layout.device_of_place)
    return Passes(
        sums(stage, by_operator.forward_ns, count), sums(stage, by_operator.backward_ns, count)
    )


def operator_passes(
    problem: PartitionProblem, layout: Layout, recomputation: Recomputation
) -> Passes:
    """Return the compute times of each operator on its device.

    Recomputation counts towards the backward pass.
    """
    arrays, devices = problem.arrays, problem.devices
    count = len(problem.operators)
    device = layout.device_of_stage[layout.stage[:count]]
    passes = Passes(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64))
    for device_class in {entry.device_class for entry in devices}:
        of_class = np.array([entry.device_class == device_class for entry in devices])
        here = np.flatnonzero(of_class[device])
        forward_ns, backward_ns = arrays.pass_latency_ns(device_class)
        passes.forward_ns[here], passes.backward_ns[here] = forward_ns[here], backward_ns[here]
        again = here[recomputation.again[here]]
        passes.backward_ns[again] += forward_ns[again]
    return passes


def stage_moves(problem: PartitionProblem, layout: Layout) -> Moves:
    """Return the transfers of a plan under the charging of its problem."""
    if problem.interconnect.charging == "relayed":
        return _relay_moves(problem, layout, layout.hops)
    arrays, devices, stage = problem.arrays, problem.devices, layout.stage
    device_of_stage, count = layout.device_of_stage, layout.stage_count
    device = device_of_stage[stage[: len(problem.operators)]]
    # Pair each value with the first stage that reads it on each other device.
    value, target = unique_pairs(layout.read, stage[layout.reader], count)
    moved = device_of_stage[target] != device[value]
    value, target = value[moved], target[moved]
    # The pairs are sorted by value and stage, and np.unique returns first occurrences.
    _, first = np.unique(value * len(devices) + device_of_stage[target], return_index=True)
    value, target = value[first], target[first]
    arcs, sent = _pairs(stage[value], target, count), value
    transfer_bytes = int((arrays.value_bytes + arrays.gradient_bytes)[value].sum())
    if problem.interconnect.charging == "peer_to_peer":
        times = _times(problem, value, device[value], device_of_stage[target])
        return Moves(stage[value], target, value, *times, arcs, sent, transfer_bytes)
    pays = np.array([not entry.is_host for entry in devices])
    written = np.unique(value[pays[device[value]]])
    paid = pays[device_of_stage[target]]
    value, target = value[paid], target[paid]
    ends = [np.full(len(items), -1, dtype=np.int64) for items in (written, value)]
    writes = _times(problem, written, device[written], ends[0])
    reads = _times(problem, value, ends[1], device_of_stage[target])
    forward_ns, gradient_ns = (np.concatenate(parts) for parts in zip(writes, reads, strict=True))
    source, target, value = (
        np.concatenate(parts)
        for parts in ((stage[written], ends[1]), (ends[0], target), (written, value))
    )
    return Moves(source, target, value, forward_ns, gradient_ns, arcs, sent, transfer_bytes)


def _times(
    problem: PartitionProblem, values: Ints, sources: Ints, targets: Ints
) -> tuple[Ints, Ints]:
    """Return the transfer times of values, and of gradients back; device -1 is the host."""
    arrays, interconnect, devices = problem.arrays, problem.interconnect, problem.devices
    if not interconnect.links:
        return arrays.transfer_parts_ns(values, interconnect.default, interconnect.default)
    forward_ns = np.zeros(len(values), dtype=np.int64)
    gradient_ns = np.zeros(len(values), dtype=np.int64)
    keys = sources * (len(devices) + 1) + targets
    for key in np.unique(keys):
        here = np.flatnonzero(keys == key)
        source, target = (
            STAGING_HOST if ends[here[0]] < 0 else devices[ends[here[0]]].name
            for ends in (sources, targets)
        )
        forward_ns[here], gradient_ns[here] = arrays.transfer_parts_ns(
            values[here], interconnect.link(source, target), interconnect.link(target, source)
        )
    return forward_ns, gradient_ns


def _relay_moves(problem: PartitionProblem, layout: Layout, hops: Hops) -> Moves:
    """Charge every hop to both of its positions."""
    travelled = hops.value if hops.device_count > 1 else hops.value[:0]
    sizes_bytes = problem.arrays.value_bytes + problem.arrays.gradient_bytes
    source, target = layout.place[hops.source], layout.place[hops.target]
    return Moves(
        source,
        target,
        hops.value,
        hops.forward_ns,
        hops.gradient_ns,
        _pairs(source, target, len(layout.place)),
        travelled,
        int(sizes_bytes[travelled].sum()),
    )


def _pairs(sources: Ints, targets: Ints, count: int) -> list[tuple[int, int]]:
    first, second = unique_pairs(sources, targets, count)
    return list(zip(first.tolist(), second.tolist(), strict=True))
