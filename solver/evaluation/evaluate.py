"""The only definition of memory, load, transfer, latency and feasibility of a plan.

Implements ``docs/formulation.md``, sections 2 to 4 and 8; this module does no search.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import networkx as nx
import numpy as np

from solver.evaluation.layout import Layout
from solver.evaluation.relays import Hops
from solver.evaluation.stage_memory import (
    StageMemory,
    microbatches_in_flight,
    received_bytes_of,
    weights_bytes_of,
)
from solver.evaluation.step import PipelineStep, pipeline_step
from solver.evaluation.transfers import Moves, Passes, stage_moves, stage_passes
from solver.model.arrays import Ints, sums
from solver.model.cuts import broken_by
from solver.model.plan import PartitionPlan, Stage, check_assignment
from solver.model.problem import ObjectiveName, PartitionProblem


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """What one device does and holds under a plan.

    Attributes
    ----------
    device : str
        Its name.
    operators : tuple of str
        Chunk after chunk, each in execution order; empty for an unused device.
    capacity_bytes : int or None
        None is unlimited.
    memory_bytes : int
        Peak, as the memory model of the problem defines it.
    weights_bytes, received_bytes, saved_bytes : int
        Constant parts of the peak; `saved_bytes` is what earlier microbatches in flight keep.
        Summed over the chunks, but for the weights, which they share. Under relayed charging
        these and the times include positions of the device that only pass values on, which are
        no stages.
    peak_operator : str or None
        The first operator at which all else reaches its largest sum.
    timeline_bytes : tuple of int
        Memory while each of `operators` runs and the other chunks of the device, which work on
        other microbatches at the same time, are at their peaks; its maximum is `memory_bytes`.
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

    @property
    def peak_memory_permille(self) -> int:
        """Peak memory per thousand of capacity, rounded up; 0 where memory is unlimited."""
        if self.capacity_bytes is None:
            return 0
        return -(-self.memory_bytes * 1000 // self.capacity_bytes)


@dataclass(frozen=True, slots=True)
class StageUsage:
    """What one stage adds to what its device does and holds.

    Attributes
    ----------
    received_bytes, live_bytes, saved_bytes : int
        Memory of the stage: what it receives, its largest sum of holdings
        (:mod:`solver.model.holdings`), and what it keeps of `in_flight` - 1 earlier
        microbatches. The weights are held by the device.
    in_flight : int
        Microbatches of which it keeps what their backward passes need.
    compute_ns, send_ns, receive_ns, time_ns : int
        A value that several stages of a device read is received by the first of them.
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


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The cost of a plan in every objective, and what it violates.

    Attributes
    ----------
    violations : tuple of str
        One sentence for each broken constraint; empty for a feasible plan.
    usage : tuple of DeviceUsage
        One per device of the problem, in the problem's order.
    stages : tuple of StageUsage
        One per stage of the plan, in the plan's order.
    step : PipelineStep
        One step of the plan as a pipeline; `step.timeline()` says when everything runs.
    objective_names : tuple of str
        The problem's objectives.
    objective : tuple of int
        Their values.
    """

    violations: tuple[str, ...]
    usage: tuple[DeviceUsage, ...]
    stages: tuple[StageUsage, ...]
    devices_used: int
    transfer_bytes: int
    bottleneck_ns: int
    latency_ns: int
    peak_memory_permille: int
    step: PipelineStep
    objective_names: tuple[ObjectiveName, ...]
    objective: tuple[int, ...]

    @property
    def step_ns(self) -> int:
        """Time of a step of all microbatches, found whenever it is asked for."""
        return self.step.step_ns

    @property
    def feasible(self) -> bool:
        """Whether the plan breaks nothing."""
        return not self.violations

    def value(self, objective: ObjectiveName) -> int:
        """Return the plan's value in one objective, whether or not the problem asks for it."""
        if objective == "step":
            return self.step_ns
        return {
            "devices": self.devices_used,
            "transfer": self.transfer_bytes,
            "bottleneck": self.bottleneck_ns,
            "latency": self.latency_ns,
            "peak_memory": self.peak_memory_permille,
        }[objective]


def evaluate(problem: PartitionProblem, plan: PartitionPlan) -> Evaluation:
    """Cost `plan` and check it.

    Parameters
    ----------
    problem : PartitionProblem
        Says which operators, devices and limits there are.
    plan : PartitionPlan
        Need not be feasible.

    Returns
    -------
    Evaluation
        Of every objective, and all violations; the plan is feasible if there is none.

    Raises
    ------
    PartitionError
        If the plan is not a total map from the operators to the devices.

    Notes
    -----
    The latency of a plan whose stages form a cycle is the sum of the times of all stages, and its
    step that of all microbatches one after another.
    Runs in near-linear time, a few tens of milliseconds per 100,000 operators.
    """
    check_assignment(problem, plan.assignment)
    device_number = {device.name: number for number, device in enumerate(problem.devices)}
    layout = Layout(problem, plan, device_number)
    passes, moves = stage_passes(problem, layout), stage_moves(problem, layout)
    times = _stage_times(passes, moves)
    memory = StageMemory(
        problem,
        layout.stage,
        layout.order,
        len(plan.stages),
        values_hop=layout.hops is not None,
    )
    weights_bytes = weights_bytes_of(problem, layout.device_of_stage[layout.stage], layout.order)
    counts = microbatches_in_flight(problem, plan)
    earlier = np.array(counts, dtype=np.int64) - 1
    saved_bytes = (memory.saved_bytes * earlier).tolist()
    received = received_bytes_of(problem, layout, memory)
    received_bytes, live_bytes = received.tolist(), memory.peak_bytes.tolist()
    stages = tuple(
        StageUsage(
            stage=stage,
            received_bytes=received_bytes[index],
            live_bytes=live_bytes[index],
            saved_bytes=saved_bytes[index],
            in_flight=counts[index],
            compute_ns=times.compute_ns[index],
            send_ns=times.send_ns[index],
            receive_ns=times.receive_ns[index],
            time_ns=_load(
                problem, times.compute_ns[index], times.send_ns[index], times.receive_ns[index]
            ),
        )
        for index, stage in enumerate(plan.stages)
    )
    relays = _relays(problem, layout, times, received)
    usage = _device_usage(problem, layout, stages, relays, memory, weights_bytes.tolist())
    latency_ns = _longest_path(stages, layout.arcs)
    if layout.hops is not None:
        latency_ns = _longest_relay(problem, layout, layout.hops, times)
    step = pipeline_step(problem, plan, layout, passes, moves)
    values: dict[str, int] = {
        "devices": len(plan.device_order),
        "transfer": times.transfer_bytes,
        "bottleneck": max(entry.load_ns for entry in usage),
        "latency": latency_ns,
        "peak_memory": max(entry.peak_memory_permille for entry in usage),
    }
    if "step" in problem.objective:
        values["step"] = step.step_ns
    return Evaluation(
        violations=tuple(_violations(problem, plan, usage, layout.arcs)),
        usage=usage,
        stages=stages,
        devices_used=values["devices"],
        transfer_bytes=values["transfer"],
        bottleneck_ns=values["bottleneck"],
        latency_ns=values["latency"],
        peak_memory_permille=values["peak_memory"],
        step=step,
        objective_names=problem.objective,
        objective=tuple(values[name] for name in problem.objective),
    )


def stage_memory_bytes(
    problem: PartitionProblem,
    operators: Iterable[str],
    in_flight: int = 1,
    *,
    relayed_bytes: int | None = None,
) -> int:
    """Return what a device that runs exactly `operators`, in one chunk, holds at its peak.

    It depends on nothing else in a plan: whatever these operators read from others is received,
    and whatever others read from them is sent. Under relayed charging that is a lower bound, of a
    device that passes on nothing for others, unless `relayed_bytes` are given.

    Parameters
    ----------
    operators : iterable of str
        In any order; they run in execution order.
    in_flight : int
        Microbatches of which something is kept (memory model ``training`` only).
    relayed_bytes : int, optional
        What the device holds of values that hop to it and from it, which it reads or not.
    """
    here = np.array(sorted({problem.index_of[name] for name in operators}), dtype=np.int64)
    if not len(here):
        return 0
    stage = np.full(len(problem.arrays.root), -1, dtype=np.int64)
    stage[here] = 0
    memory = StageMemory(problem, stage, here, 1, values_hop=relayed_bytes is not None)
    held_bytes = weights_bytes_of(problem, stage, here) + memory.received_bytes + memory.peak_bytes
    held_bytes += relayed_bytes or 0
    return int((held_bytes + (in_flight - 1) * memory.saved_bytes)[0])


@dataclass(frozen=True, slots=True)
class _StageTimes:
    """Times by place, and the bytes that travel in all."""

    compute_ns: list[int]
    send_ns: list[int]
    receive_ns: list[int]
    transfer_bytes: int


def _stage_times(passes: Passes, moves: Moves) -> _StageTimes:
    sent, received = moves.source >= 0, moves.target >= 0
    moved_ns, count = moves.forward_ns + moves.gradient_ns, len(passes.forward_ns)
    return _StageTimes(
        compute_ns=(passes.forward_ns + passes.backward_ns).tolist(),
        send_ns=sums(moves.source[sent], moved_ns[sent], count).tolist(),
        receive_ns=sums(moves.target[received], moved_ns[received], count).tolist(),
        transfer_bytes=moves.transfer_bytes,
    )


def _load(problem: PartitionProblem, compute_ns: int, send_ns: int, receive_ns: int) -> int:
    parts_ns = (compute_ns, send_ns, receive_ns)
    return max(parts_ns) if problem.interconnect.overlap else sum(parts_ns)


@dataclass(frozen=True, slots=True)
class _Relay:
    """What the positions of a device that have no operators add to what it does and holds."""

    received_bytes: int = 0
    send_ns: int = 0
    receive_ns: int = 0


def _relays(
    problem: PartitionProblem, layout: Layout, times: _StageTimes, received_bytes: Ints
) -> list[_Relay]:
    """Return what only passes through, by device of the problem."""
    empty = slice(layout.stage_count, None)
    device, count = layout.device_of_place[empty], len(problem.devices)
    totals = [
        sums(device, np.array(values[empty], dtype=np.int64), count).tolist()
        for values in (received_bytes, times.send_ns, times.receive_ns)
    ]
    return [_Relay(*parts) for parts in zip(*totals, strict=True)]


def _device_usage(
    problem: PartitionProblem,
    layout: Layout,
    stages: tuple[StageUsage, ...],
    relays: list[_Relay],
    memory: StageMemory,
    weights_bytes: list[int],
) -> tuple[DeviceUsage, ...]:
    stages_of: dict[str, list[int]] = {device.name: [] for device in problem.devices}
    for index, entry in enumerate(stages):
        stages_of[entry.stage.device].append(index)
    limits = np.searchsorted(layout.stage[layout.order], np.arange(len(stages) + 1)).tolist()
    usage: list[DeviceUsage] = []
    for number, device in enumerate(problem.devices):
        own = [stages[index] for index in stages_of[device.name]]
        held_bytes = weights_bytes[number] if own else 0
        relay = relays[number]
        received_bytes = sum(entry.received_bytes for entry in own) + relay.received_bytes
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
        send_ns = sum(entry.send_ns for entry in own) + relay.send_ns
        receive_ns = sum(entry.receive_ns for entry in own) + relay.receive_ns
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
                load_ns=_load(problem, compute_ns, send_ns, receive_ns),
            )
        )
    return tuple(usage)


def _longest_path(stages: tuple[StageUsage, ...], arcs: list[tuple[int, int]]) -> int:
    """Return the longest path through the stages; those of a device run one after another."""
    quotient = nx.DiGraph(arcs)
    quotient.add_nodes_from(range(len(stages)))
    previous: dict[str, int] = {}
    for index, entry in enumerate(stages):
        if entry.stage.device in previous:
            quotient.add_edge(previous[entry.stage.device], index)
        previous[entry.stage.device] = index
    if not nx.is_directed_acyclic_graph(quotient):
        return sum(entry.time_ns for entry in stages)
    finish_ns: dict[int, int] = {}
    for index in nx.topological_sort(quotient):
        start_ns = max((finish_ns[source] for source in quotient.predecessors(index)), default=0)
        finish_ns[index] = start_ns + stages[index].time_ns
    return max(finish_ns.values())


def _longest_relay(
    problem: PartitionProblem, layout: Layout, hops: Hops, times: _StageTimes
) -> int:
    """Return the longest path through the positions of a pipeline.

    A position starts after the one before it if anything hops from there, and after the one of
    the chunk before on its device.
    """
    hopped = set(hops.source.tolist())
    finish_ns: list[int] = []
    for position, place in enumerate(layout.place.tolist()):
        start_ns = finish_ns[position - 1] if position - 1 in hopped else 0
        if position >= hops.device_count:
            start_ns = max(start_ns, finish_ns[position - hops.device_count])
        parts_ns = (times.compute_ns[place], times.send_ns[place], times.receive_ns[place])
        finish_ns.append(start_ns + _load(problem, *parts_ns))
    return max(finish_ns)


def _violations(
    problem: PartitionProblem,
    plan: PartitionPlan,
    usage: tuple[DeviceUsage, ...],
    arcs: list[tuple[int, int]],
) -> list[str]:
    found = _broken_order(plan, arcs)
    chunk_count = 1 + plan.stages[-1].chunk
    if chunk_count > problem.chunks_per_device:
        found.append(
            f"the plan has {chunk_count} chunks per device, but at most "
            f"{problem.chunks_per_device} may be used"
        )
    most = problem.max_devices
    if most is not None and len(plan.device_order) > most:
        found.append(f"the plan uses {len(plan.device_order)} devices, but may use {most} at most")
    for entry in usage:
        if entry.capacity_bytes is not None and entry.memory_bytes > entry.capacity_bytes:
            found.append(
                f"device {entry.device!r} needs {entry.memory_bytes:,} bytes but has "
                f"{entry.capacity_bytes:,}: {entry.memory_bytes - entry.capacity_bytes:,} too few"
            )
    for op in problem.operators:
        if op.allowed_devices is None:
            continue
        device = plan.assignment[op.name]
        if device not in op.allowed_devices:
            found.append(f"operator {op.name!r} may not run on device {device!r}")
    for group in problem.colocation:
        devices = list(dict.fromkeys(plan.assignment[name] for name in group.operators))
        if len(devices) > 1:
            found.append(
                f"operators {group.operators[0]!r} and others must share a device "
                f"({group.reason}) but are on {', '.join(devices)}"
            )
            continue
        chunks = sorted({plan.chunks.get(name, 0) for name in group.operators})
        if len(chunks) > 1:
            found.append(
                f"operators {group.operators[0]!r} and others must share a stage "
                f"({group.reason}) but are in chunks {', '.join(map(str, chunks))}"
            )
    return found + broken_by(problem, plan)


def _broken_order(plan: PartitionPlan, arcs: list[tuple[int, int]]) -> list[str]:
    """Say which values would travel to an earlier stage."""
    # Stages are in their order, so an arc that goes back is one to a smaller number.
    if all(source < target for source, target in arcs):
        return []
    quotient = nx.DiGraph(arcs)
    names = [str(stage) if plan.chunks else stage.device for stage in plan.stages]
    if not nx.is_directed_acyclic_graph(quotient):
        cycle = [names[source] for source, _ in nx.find_cycle(quotient)]
        return [f"the stages form a cycle: {' -> '.join([*cycle, cycle[0]])}"]
    what = "stage" if plan.chunks else "device"
    return [
        f"{what} {names[source]!r} sends to {names[target]!r}, which is an earlier stage"
        for source, target in arcs
        if source > target
    ]
