"""Checks of a whole problem: consistency of its parts, and their totals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from solver.model.checks import check_unique
from solver.model.devices import STAGING_HOST, Link, check_interconnect
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.problem_fields import ProblemFields
from solver.model.training import NO_BACKWARD

MOST_CHUNKS: Final = 1000
"""Most stages of one device."""
TIMED_OBJECTIVES: Final = ("bottleneck", "latency", "step")
"""Objectives in nanoseconds."""
MAX_TOTAL: Final = 10**15
"""Largest total of bytes (1 PB) or nanoseconds (11 days) of a problem.

Up to here per mille of a capacity fit the solvers' 64-bit integers, and their floats are exact.
"""


def check_devices(problem: ProblemFields) -> None:
    """Refuse missing or duplicate devices, and links of unknown devices."""
    if not problem.devices:
        raise PartitionError("there are no devices; give at least one")
    check_unique((device.name for device in problem.devices), "device")
    check_interconnect(problem.interconnect)
    known = {device.name for device in problem.devices} | {STAGING_HOST}
    for pair in problem.interconnect.links:
        for end in pair:
            if end not in known:
                raise PartitionError(
                    f"interconnect link {pair[0]!r} -> {pair[1]!r}: no device is called "
                    f"{end!r}; the devices are {', '.join(sorted(known))}"
                )
        if pair[0] == pair[1]:
            raise PartitionError(
                f"interconnect link {pair[0]!r} -> {pair[1]!r} leads from a device to itself, "
                "where nothing is transferred; leave it out"
            )


def check_graph(problem: ProblemFields) -> None:
    """Refuse unknown reads, weights or devices, missing times, misplaced backward operators."""
    if not problem.operators:
        raise PartitionError("the graph has no operators; there is nothing to place")
    check_unique(
        [g.name for g in problem.inputs] + [op.name for op in problem.operators],
        "operator or graph input",
    )
    device_names = {device.name for device in problem.devices}
    device_classes = {device.device_class for device in problem.devices}
    all_names = {op.name for op in problem.operators}
    seen = {graph_input.name for graph_input in problem.inputs}
    region = 0
    for op in problem.operators:
        where = f"operator {op.name!r}: "
        for source in op.reads:
            if source in seen:
                continue
            if source in all_names:
                raise PartitionError(
                    f"{where}reads {source!r}, which comes later in the execution order; "
                    "list operators in a topological order"
                )
            raise PartitionError(
                f"{where}reads {source!r}, which is neither an operator nor a graph input; add it"
            )
        _check_recomputation(op, where, seen, region)
        region = op.backward.region
        for key in op.weights:
            if key not in problem.weights:
                raise PartitionError(
                    f"{where}weight {key!r} is not in the table of weights; write its size there"
                )
        if op.allowed_devices is not None and not op.allowed_devices <= device_names:
            unknown = min(op.allowed_devices - device_names)
            raise PartitionError(
                f"{where}allowed_devices names {unknown!r}; the devices are "
                f"{', '.join(sorted(device_names))}"
            )
        for text, latency in (("", op.latency_ns), ("backward ", op.backward.latency_ns)):
            if isinstance(latency, Mapping) and not device_classes <= set(latency):
                missing = min(device_classes - set(latency))
                raise PartitionError(
                    f"{where}{text}latency_ns has no entry for device class {missing!r}; write one"
                )
        if op.is_backward and "step" in problem.objective:
            raise PartitionError(
                f"{where}is_backward, but the objective 'step' schedules whole passes; give "
                "the forward graph with `backward` and memory_model 'training'"
            )
        if op.is_backward and problem.memory_model != "weights":
            raise PartitionError(
                f"{where}is_backward needs memory_model 'weights'; for activations of "
                "training give the forward graph with `backward` and memory_model 'training'"
            )
        if op.is_backward and problem.interconnect.charging == "relayed":
            raise PartitionError(
                f"{where}is_backward is set, but a pipeline relays values forward only; give "
                "the forward graph with `backward`, or write another charging than 'relayed'"
            )
        seen.add(op.name)


def _check_recomputation(op: Operator, where: str, seen: set[str], region: int) -> None:
    """Refuse inconsistent recomputation fields; `seen` are earlier names, `region` the last one."""
    for saved in op.backward.saves:
        if saved not in seen and saved != op.name:
            raise PartitionError(
                f"{where}backward saves {saved!r}, which does not come before it; name what "
                "it reads, itself, or what they are aliases of"
            )
    if op.backward.region < region:
        raise PartitionError(
            f"{where}backward region is {op.backward.region} after {region}; regions are "
            "numbered in the execution order"
        )
    if op.backward.recomputable and op.alias_of is not None:
        raise PartitionError(
            f"{where}backward is recomputable, but its value is an alias of "
            f"{op.alias_of!r}; say so of the operator that owns the storage"
        )


def check_colocation(problem: ProblemFields) -> None:
    """Refuse groups with unknown operators, or with members that no device may run together."""
    for group in problem.colocation:
        for name in group.operators:
            if name not in problem.index_of:
                raise PartitionError(
                    f"colocation group ({group.reason}): {name!r} is not an operator; leave it out"
                )
    for unit in problem.units:
        allowed: frozenset[str] | None = None
        pinned_by = ""
        for name in unit:
            own = problem.operators[problem.index_of[name]].allowed_devices
            if own is None:
                continue
            if allowed is not None and not allowed & own:
                raise PartitionError(
                    f"operators {pinned_by!r} and {name!r} must share a device by "
                    f"colocation or a pinned stage, but may run on "
                    f"{', '.join(sorted(allowed))} and on {', '.join(sorted(own))}; let them "
                    "share one"
                )
            allowed = own if allowed is None else allowed & own
            pinned_by = name


def check_timed(problem: ProblemFields) -> None:
    """Refuse a timed objective if no operator has a time: every plan would be optimal."""
    goal = problem.objective[0]
    if goal not in TIMED_OBJECTIVES:
        return
    for op in problem.operators:
        for latency in (op.latency_ns, op.backward.latency_ns if problem.is_training else 0):
            if any(latency.values()) if isinstance(latency, Mapping) else latency:
                return
    raise PartitionError(
        f"no operator has a time, which the objective {goal!r} counts; give `latency_ns` to each, "
        "or write another objective, such as transfer"
    )


def check_totals(problem: ProblemFields, totals: tuple[int, int]) -> None:
    """Refuse totals of all possible costs (:func:`totals_of`) above `MAX_TOTAL`."""
    for device in problem.devices:
        if device.memory_bytes is not None and device.memory_bytes > MAX_TOTAL:
            raise PartitionError(
                f"device {device.name!r}: memory_bytes is above {MAX_TOTAL} (1 PB); "
                "write less, or None (null in a file) for unlimited memory"
            )
    size_bytes, time_ns = totals
    for weight in problem.weights.values():
        size_bytes += weight.held_bytes("training") + weight.size_bytes
    if size_bytes > MAX_TOTAL:
        raise PartitionError(
            f"sizes add up to more than {MAX_TOTAL} bytes (1 PB); write smaller ones"
        )
    if time_ns > MAX_TOTAL:
        raise PartitionError(
            f"times of operators and transfers add up to more than {MAX_TOTAL} ns (11 days); "
            "write smaller ones, or a faster link"
        )
    if "step" in problem.objective and problem.microbatches * time_ns > MAX_TOTAL:
        raise PartitionError(
            f"microbatches is {problem.microbatches}, and a step of all of them may take more than "
            f"{MAX_TOTAL} ns (11 days); write at most {MAX_TOTAL // time_ns}"
        )


def totals_of(problem: ProblemFields) -> tuple[int, int]:
    """Return bytes (without weights) and nanoseconds of all possible costs together."""
    # A stage without operators holds nothing.
    chunks = min(problem.chunks_per_device, len(problem.operators))
    batches = problem.microbatches if problem.memory_model != "weights" else 1
    sizes = [chunks * batches * graph_input.value_bytes for graph_input in problem.inputs]
    # A pipeline relays every value at most once to each of its other positions.
    relayed = problem.interconnect.charging == "relayed"
    borders = problem.chunks_per_device * len(problem.devices) - 1
    links = (problem.interconnect.default, *problem.interconnect.links.values())
    rates = [link.bandwidth_bytes_per_s for link in links if link.bandwidth_bytes_per_s]
    slowest = Link(min(rates, default=None), max(link.latency_ns for link in links))
    times: list[int] = []
    for op in problem.operators:
        backward = op.backward if problem.is_training else NO_BACKWARD
        for latency in (op.latency_ns, backward.latency_ns):
            times.append(max(latency.values()) if isinstance(latency, Mapping) else latency)
        readers = len(problem.readers_of[op.name])
        moves = min(readers, len(problem.devices) - 1)
        # Every other reading stage may hold it.
        held_bytes = batches * op.held_value_bytes + 2 * backward.gradient_bytes
        held_bytes += backward.buffer_bytes
        holders = max(1, min(readers, chunks * len(problem.devices) - 1))
        if relayed:
            moves = borders if readers or op.is_output else 0
            holders = max(1, moves)
            held_bytes += batches * backward.gradient_bytes
        sizes.append(held_bytes * holders)
        sizes.append(batches * op.storage_bytes)
        if problem.is_training:
            sizes.append((1 + batches) * (op.storage_bytes + backward.gradient_bytes))
            own_bytes = backward.residual_bytes + backward.number_bytes
            sizes.append(batches * own_bytes + backward.workspace_bytes)
            sizes.append(backward.weight_gradient_bytes)
        own_ns = slowest.transfer_ns(op.value_bytes)
        if backward.gradient_bytes:
            own_ns += slowest.transfer_ns(backward.gradient_bytes)
        # One send or write for each device that reads, and one receive there.
        times.append(2 * moves * (own_ns if op.transfer_ns is None else op.transfer_ns))
    return sum(sizes), sum(times)
