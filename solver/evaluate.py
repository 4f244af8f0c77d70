"""The only definition of what a plan costs and whether it is feasible.

Every solver's answer is costed here, whoever found it. The definitions are those of
``docs/formulation.md``, sections 2 to 4; this module does no search.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import networkx as nx

from solver.hardware import STAGING_HOST, Device
from solver.plan import PartitionPlan, check_assignment, quotient_arcs
from solver.problem import ObjectiveName, Operator, PartitionProblem


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """What one device does and holds under a plan.

    Attributes
    ----------
    device : str
    operators : tuple of str
        In execution order; empty for an unused device.
    capacity_bytes : int or None
    memory_bytes : int
        Peak, as the memory model of the problem defines it.
    weights_bytes, received_bytes, saved_bytes : int
        Constant parts of the peak; `saved_bytes` is already times the microbatches in flight.
    peak_operator : str or None
        The first operator at which the live storages reach their largest sum.
    timeline_bytes : tuple of int
        Memory while each of `operators` runs; its maximum is `memory_bytes`.
    compute_ns, send_ns, receive_ns, load_ns : int
        Times per sample (per microbatch when training).
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
class Evaluation:
    """The cost of a plan in every objective, and what it violates.

    Attributes
    ----------
    violations : tuple of str
        One sentence for each broken constraint; empty for a feasible plan.
    usage : tuple of DeviceUsage
        One per device of the problem, in the problem's order.
    objective : tuple of int
        The values of the problem's objectives, in their order.
    """

    violations: tuple[str, ...]
    usage: tuple[DeviceUsage, ...]
    devices_used: int
    transfer_bytes: int
    bottleneck_ns: int
    latency_ns: int
    peak_memory_permille: int
    objective: tuple[int, ...]

    @property
    def feasible(self) -> bool:
        """Whether the plan breaks nothing."""
        return not self.violations

    def value(self, objective: ObjectiveName) -> int:
        """Return the plan's value in one objective, whether or not the problem asks for it."""
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
    plan : PartitionPlan
        Need not be feasible.

    Returns
    -------
    Evaluation

    Raises
    ------
    PartitionError
        If the plan is not a total map from the operators to the devices.

    Notes
    -----
    The latency of a plan whose quotient graph has a cycle is the sum of all loads.
    Runs in time linear in the size of the graph.
    """
    check_assignment(problem, plan.assignment)
    assignment = plan.assignment
    consumers = _consumers(problem, assignment)
    compute_ns: dict[str, int] = defaultdict(int)
    operators: dict[str, list[str]] = {device.name: [] for device in problem.devices}
    for op in problem.operators:
        device = problem.device_of[assignment[op.name]]
        compute_ns[device.name] += op.latency_on(device.device_class)
        operators[device.name].append(op.name)
    send_ns, receive_ns, transfer_bytes = _transfers(problem, assignment, consumers)
    stage_of = {device: position for position, device in enumerate(plan.device_order)}

    usage: list[DeviceUsage] = []
    for device in problem.devices:
        parts = (compute_ns[device.name], send_ns[device.name], receive_ns[device.name])
        in_flight = _microbatches_in_flight(
            problem, stage_of.get(device.name), len(plan.device_order)
        )
        usage.append(
            _usage(problem, device, tuple(operators[device.name]), consumers, in_flight, parts)
        )

    arcs = quotient_arcs(problem, assignment)
    load_of = {entry.device: entry.load_ns for entry in usage}
    values: dict[str, int] = {
        "devices": len(plan.device_order),
        "transfer": transfer_bytes,
        "bottleneck": max(load_of.values()),
        "latency": _longest_path(load_of, arcs),
        "peak_memory": max(entry.peak_memory_permille for entry in usage),
    }
    return Evaluation(
        violations=tuple(_violations(problem, plan, usage, arcs)),
        usage=tuple(usage),
        devices_used=values["devices"],
        transfer_bytes=values["transfer"],
        bottleneck_ns=values["bottleneck"],
        latency_ns=values["latency"],
        peak_memory_permille=values["peak_memory"],
        objective=tuple(values[name] for name in problem.objective),
    )


def stage_memory_bytes(
    problem: PartitionProblem, operators: Iterable[str], in_flight: int = 1
) -> int:
    """Return what a device that runs exactly `operators` holds at its peak.

    It depends on nothing else in a plan: whatever these operators read from others is received,
    and whatever others read from them is sent.

    Parameters
    ----------
    problem : PartitionProblem
    operators : iterable of str
        In any order; they run in execution order.
    in_flight : int
        Microbatches for which saved storages are kept (memory model ``training`` only).
    """
    here = set(operators)
    ops = [problem.operators[index] for index in sorted(problem.index_of[name] for name in here)]
    sent = {op.name for op in ops if any(r not in here for r in problem.readers_of[op.name])}
    return _memory(problem, ops, sent, in_flight).peak_bytes


def _consumers(
    problem: PartitionProblem, assignment: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return, for every value, the devices of its readers other than its own, each once."""
    return {
        name: tuple(
            dict.fromkeys(
                assignment[reader]
                for reader in readers
                if assignment[reader] != assignment.get(name)
            )
        )
        for name, readers in problem.readers_of.items()
    }


def _transfers(
    problem: PartitionProblem,
    assignment: Mapping[str, str],
    consumers: Mapping[str, tuple[str, ...]],
) -> tuple[dict[str, int], dict[str, int], int]:
    """Return send time and receive time by device, and the bytes sent in all."""
    interconnect = problem.interconnect
    send_ns: dict[str, int] = defaultdict(int)
    receive_ns: dict[str, int] = defaultdict(int)
    transfer_bytes = 0

    def time_ns(op: Operator, source: str, target: str) -> int:
        if op.transfer_ns is not None:
            return op.transfer_ns
        return interconnect.link(source, target).transfer_ns(op.value_bytes)

    for op in problem.operators:
        producer = assignment[op.name]
        targets = consumers[op.name]
        transfer_bytes += op.value_bytes * len(targets)
        if interconnect.charging == "peer_to_peer":
            for target in targets:
                moved_ns = time_ns(op, producer, target)
                send_ns[producer] += moved_ns
                receive_ns[target] += moved_ns
            continue
        if targets and not problem.device_of[producer].is_host:
            send_ns[producer] += time_ns(op, producer, STAGING_HOST)
        for target in targets:
            if not problem.device_of[target].is_host:
                receive_ns[target] += time_ns(op, STAGING_HOST, target)
    return send_ns, receive_ns, transfer_bytes


def _microbatches_in_flight(problem: PartitionProblem, stage: int | None, stage_count: int) -> int:
    """Return how many microbatches a stage keeps saved storages for.

    GPipe keeps all of them (Huang et al., "GPipe", 2019, section 2.3); 1F1B at most one per
    stage from here to the last (Narayanan et al., "PipeDream", 2019, section 3.2).
    """
    if stage is None:
        return 0
    if problem.schedule == "gpipe":
        return problem.microbatches
    return min(stage_count - stage, problem.microbatches)


def _usage(
    problem: PartitionProblem,
    device: Device,
    operators: tuple[str, ...],
    consumers: dict[str, tuple[str, ...]],
    in_flight: int,
    parts_ns: tuple[int, int, int],
) -> DeviceUsage:
    ops = [problem.operators[problem.index_of[name]] for name in operators]
    memory = _memory(problem, ops, {name for name in operators if consumers[name]}, in_flight)
    live_bytes = memory.live_bytes
    peak = max(range(len(ops)), key=live_bytes.__getitem__) if ops else None
    return DeviceUsage(
        device=device.name,
        operators=operators,
        capacity_bytes=device.memory_bytes,
        memory_bytes=memory.peak_bytes,
        weights_bytes=memory.weights_bytes,
        received_bytes=memory.received_bytes,
        saved_bytes=memory.saved_bytes,
        peak_operator=None if peak is None else operators[peak],
        timeline_bytes=tuple(memory.constant_bytes + live for live in live_bytes),
        compute_ns=parts_ns[0],
        send_ns=parts_ns[1],
        receive_ns=parts_ns[2],
        load_ns=max(parts_ns) if problem.interconnect.overlap else sum(parts_ns),
    )


@dataclass(frozen=True, slots=True)
class _Memory:
    """The parts of what a device holds, and its live storages while each operator runs."""

    weights_bytes: int
    received_bytes: int
    saved_bytes: int
    live_bytes: list[int]

    @property
    def constant_bytes(self) -> int:
        return self.weights_bytes + self.received_bytes + self.saved_bytes

    @property
    def peak_bytes(self) -> int:
        return self.constant_bytes + max(self.live_bytes, default=0)


def _memory(
    problem: PartitionProblem, ops: list[Operator], sent: set[str], in_flight: int
) -> _Memory:
    """Return what a device holds for `ops`, of which it sends the values of `sent`."""
    weights_bytes = sum(
        problem.weights[key].held_bytes(problem.memory_model)
        for key in dict.fromkeys(key for op in ops for key in op.weights)
    )
    received_bytes = saved_bytes = 0
    live_bytes = [0] * len(ops)
    if problem.memory_model != "weights":
        received_bytes = _received_bytes(problem, ops)
        live_bytes = _live_bytes(problem, ops, sent)
    if problem.memory_model == "training":
        keys = dict.fromkeys(key for op in ops for key in op.saves)
        saved_bytes = in_flight * sum(problem.saved[key] for key in keys)
    return _Memory(weights_bytes, received_bytes, saved_bytes, live_bytes)


def _received_bytes(problem: PartitionProblem, ops: list[Operator]) -> int:
    """Bytes of the distinct values and graph inputs that `ops` read from elsewhere."""
    here = {op.name for op in ops}
    received = dict.fromkeys(read for op in ops for read in op.reads if read not in here)
    return sum(
        problem.input_of[name].value_bytes
        if name in problem.input_of
        else problem.operators[problem.index_of[name]].value_bytes
        for name in received
    )


def _live_bytes(problem: PartitionProblem, ops: list[Operator], sent: set[str]) -> list[int]:
    """Bytes of the storages allocated by `ops` that are live while each of them runs."""
    step_of = {op.name: step for step, op in enumerate(ops)}
    end = len(ops) - 1
    last: dict[str, int] = {}
    for step, op in enumerate(ops):
        root = problem.root_of[op.name]
        if root in step_of:
            # The caller or another device still needs it: held until the stage ends.
            held = op.is_output or op.name in sent
            last[root] = max(last.get(root, 0), end if held else step_of[root])
        for read in op.reads:
            root = problem.root_of[read]
            if read in step_of and root in step_of:
                last[root] = max(last.get(root, 0), step)
    change = [0] * (len(ops) + 1)
    for root, last_step in last.items():
        size_bytes = ops[step_of[root]].storage_bytes
        change[step_of[root]] += size_bytes
        change[last_step + 1] -= size_bytes
    return list(accumulate(change[:-1]))


def _longest_path(load_of: dict[str, int], arcs: tuple[tuple[str, str], ...]) -> int:
    quotient = nx.DiGraph(arcs)
    quotient.add_nodes_from(load_of)
    if not nx.is_directed_acyclic_graph(quotient):
        return sum(load_of.values())
    finish_ns: dict[str, int] = {}
    for device in nx.topological_sort(quotient):
        start_ns = max((finish_ns[source] for source in quotient.predecessors(device)), default=0)
        finish_ns[device] = start_ns + load_of[device]
    return max(finish_ns.values())


def _violations(
    problem: PartitionProblem,
    plan: PartitionPlan,
    usage: list[DeviceUsage],
    arcs: tuple[tuple[str, str], ...],
) -> list[str]:
    found: list[str] = []
    quotient = nx.DiGraph(arcs)
    if not nx.is_directed_acyclic_graph(quotient):
        cycle = [source for source, _ in nx.find_cycle(quotient)]
        found.append(f"the stages form a cycle: {' -> '.join([*cycle, cycle[0]])}")
    else:
        position = {device: index for index, device in enumerate(plan.device_order)}
        found.extend(
            f"device {source!r} sends to {target!r}, which is an earlier stage"
            for source, target in arcs
            if position[source] > position[target]
        )
    for entry in usage:
        if entry.capacity_bytes is not None and entry.memory_bytes > entry.capacity_bytes:
            found.append(
                f"device {entry.device!r} needs {entry.memory_bytes:,} bytes but has "
                f"{entry.capacity_bytes:,}: {entry.memory_bytes - entry.capacity_bytes:,} too few"
            )
    for op in problem.operators:
        device = plan.assignment[op.name]
        if op.allowed_devices is not None and device not in op.allowed_devices:
            found.append(f"operator {op.name!r} may not run on device {device!r}")
    for group in problem.colocation:
        devices = list(dict.fromkeys(plan.assignment[name] for name in group.operators))
        if len(devices) > 1:
            found.append(
                f"operators {group.operators[0]!r} and others must share a device "
                f"({group.reason}) but are on {', '.join(devices)}"
            )
    return found
