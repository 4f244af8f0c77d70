"""Times and memory of the stages and devices of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from solver.evaluation.layout import Layout
from solver.evaluation.stage_memory import StageMemory
from solver.evaluation.transfers import Moves, Passes
from solver.model.arrays import Ints, sums
from solver.model.checks import only_given
from solver.model.plan import PartitionPlan, Stage
from solver.model.problem import PartitionProblem


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Times and memory of one device under a plan.

    Attributes
    ----------
    device : str
        Name of the device.
    operators : tuple of str
        Chunk after chunk, each in execution order; empty for an unused device.
    capacity_bytes : int or None
        None is unlimited.
    memory_bytes : int
        Peak, as the memory model of the problem defines it.
    weights_bytes, received_bytes, saved_bytes : int
        Constant parts of the peak; `saved_bytes` belongs to earlier microbatches in flight.
        Summed over the chunks, except for the weights, which chunks share. Under relayed
        charging these and the times include positions of the device that only relay values,
        which are no stages.
    peak_operator : str or None
        The first operator at which the memory reaches its peak.
    timeline_bytes : tuple of int
        Memory while each of `operators` runs, with the other chunks of the device (at work on
        other microbatches) at their peaks; its maximum is `memory_bytes`.
    compute_ns, send_ns, receive_ns, load_ns : int
        Times per sample; in training per microbatch, forward and backward.
    """

    device: str
    operators: tuple[str, ...]
    capacity_bytes: int | None
    memory_bytes: int
    weights_bytes: int
    received_bytes: int
    saved_bytes: int
    peak_operator: str | None
    timeline_bytes: tuple[int, ...]
    compute_ns: int
    send_ns: int
    receive_ns: int
    load_ns: int
    __repr__ = only_given

    @property
    def peak_memory_permille(self) -> int:
        """Peak memory per thousand of capacity, rounded up; 0 where memory is unlimited."""
        if self.capacity_bytes is None:
            return 0
        return -(-self.memory_bytes * 1000 // self.capacity_bytes)


@dataclass(frozen=True, slots=True)
class StageUsage:
    """Contribution of one stage to the times and memory of its device, which holds the weights.

    Its memory is of received values, of the largest sum of holdings (:mod:`solver.model.holdings`),
    and of tensors saved for the backward passes of `in_flight` - 1 earlier microbatches. A value
    that several stages of a device read is received by the first of them.
    """

    stage: Stage
    received_bytes: int
    live_bytes: int
    saved_bytes: int
    in_flight: int
    compute_ns: int
    send_ns: int
    receive_ns: int
    time_ns: int
    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times by place, and the total of transferred bytes."""

    compute_ns: list[int]
    send_ns: list[int]
    receive_ns: list[int]
    load_ns: list[int]
    transfer_bytes: int


def stage_times(problem: PartitionProblem, passes: Passes, moves: Moves) -> StageTimes:
    """Add up the compute, send and receive times of every place."""
    sent, received = moves.source >= 0, moves.target >= 0
    moved_ns, count = moves.forward_ns + moves.gradient_ns, len(passes.forward_ns)
    compute_ns = (passes.forward_ns + passes.backward_ns).tolist()
    send_ns = sums(moves.source[sent], moved_ns[sent], count).tolist()
    receive_ns = sums(moves.target[received], moved_ns[received], count).tolist()
    loads_ns = map(partial(_load_ns, problem), compute_ns, send_ns, receive_ns)
    return StageTimes(compute_ns, send_ns, receive_ns, [*loads_ns], moves.transfer_bytes)


def _load_ns(problem: PartitionProblem, compute_ns: int, send_ns: int, receive_ns: int) -> int:
    """Return the load of a stage or device from its compute, send and receive times."""
    parts_ns = (compute_ns, send_ns, receive_ns)
    return max(parts_ns) if problem.interconnect.overlap else sum(parts_ns)


def microbatches_in_flight(problem: PartitionProblem, plan: PartitionPlan) -> list[int]:
    """Return the microbatches for which each stage keeps tensors of their backward passes."""
    rank = {device: rank for rank, device in enumerate(plan.device_order)}
    last_chunk = plan.stages[-1].chunk
    return [
        problem.in_flight_of(
            devices=len(rank),
            followers=len(rank) - 1 - rank[stage.device],
            # Excess chunks are a violation of their own; the first ones count as one chunk.
            later_chunks=min(last_chunk - stage.chunk, problem.chunks_per_device - 1),
        )
        for stage in plan.stages
    ]


def stage_usage(
    problem: PartitionProblem, plan: PartitionPlan, times: StageTimes, memory: StageMemory
) -> tuple[StageUsage, ...]:
    """Return the times and memory of each stage of a plan."""
    counts = microbatches_in_flight(problem, plan)
    saved_bytes = (memory.saved_bytes * (np.array(counts, dtype=np.int64) - 1)).tolist()
    received_bytes, live_bytes = memory.received_bytes.tolist(), memory.peak_bytes.tolist()
    return tuple(
        StageUsage(
            stage=stage,
            received_bytes=received_bytes[index],
            live_bytes=live_bytes[index],
            saved_bytes=saved_bytes[index],
            in_flight=counts[index],
            compute_ns=times.compute_ns[index],
            send_ns=times.send_ns[index],
            receive_ns=times.receive_ns[index],
            time_ns=times.load_ns[index],
        )
        for index, stage in enumerate(plan.stages)
    )


def device_usage(
    problem: PartitionProblem,
    layout: Layout,
    stages: tuple[StageUsage, ...],
    times: StageTimes,
    memory: StageMemory,
    weights_bytes: Ints,
) -> tuple[DeviceUsage, ...]:
    """Return the times and memory of each device: its stages and its relays.

    `weights_bytes` are by device, up to the last one that has operators.
    """
    # Positions of a device without operators, by device.
    empty = slice(layout.stage_count, None)
    relayed_bytes, relayed_send_ns, relayed_receive_ns = (
        sums(
            layout.device_of_place[empty],
            np.array(values[empty], dtype=np.int64),
            len(problem.devices),
        ).tolist()
        for values in (memory.received_bytes, times.send_ns, times.receive_ns)
    )
    stages_of: dict[str, list[int]] = {device.name: [] for device in problem.devices}
    for index, entry in enumerate(stages):
        stages_of[entry.stage.device].append(index)
    limits = np.searchsorted(layout.stage[layout.order], np.arange(len(stages) + 1)).tolist()
    usage: list[DeviceUsage] = []
    for number, device in enumerate(problem.devices):
        own = [stages[index] for index in stages_of[device.name]]
        held_bytes = int(weights_bytes[number]) if own else 0
        received_bytes = sum(entry.received_bytes for entry in own) + relayed_bytes[number]
        saved_bytes = sum(entry.saved_bytes for entry in own)
        peaks_bytes = sum(entry.live_bytes for entry in own)
        memory_bytes = held_bytes + received_bytes + saved_bytes + peaks_bytes
        operators: list[str] = []
        timeline_bytes: list[int] = []
        for index in stages_of[device.name]:
            members = slice(limits[index], limits[index + 1])
            operators += [problem.operators[i].name for i in layout.order[members].tolist()]
            others_bytes = memory_bytes - stages[index].live_bytes
            timeline_bytes += (memory.live_bytes[members] + others_bytes).tolist()
        compute_ns = sum(entry.compute_ns for entry in own)
        send_ns = sum(entry.send_ns for entry in own) + relayed_send_ns[number]
        receive_ns = sum(entry.receive_ns for entry in own) + relayed_receive_ns[number]
        usage.append(
            DeviceUsage(
                device=device.name,
                operators=tuple(operators),
                capacity_bytes=device.memory_bytes,
                memory_bytes=memory_bytes,
                weights_bytes=held_bytes,
                received_bytes=received_bytes,
                saved_bytes=saved_bytes,
                peak_operator=operators[timeline_bytes.index(memory_bytes)] if own else None,
                timeline_bytes=tuple(timeline_bytes),
                compute_ns=compute_ns,
                send_ns=send_ns,
                receive_ns=receive_ns,
                load_ns=_load_ns(problem, compute_ns, send_ns, receive_ns),
            )
        )
    return tuple(usage)
