"""Generated operator graphs and their devices.

Every random choice draws from ``random.Random(seed).random()``, the one method whose sequence
Python promises to keep, with exact or correctly rounded arithmetic: a seed gives the same instance
on every machine and release.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from experiments.problems.instances import UNEQUAL_SHARES, one_device_bytes
from solver import (
    DEFAULT_DEVICE_CLASS,
    PCIE,
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionError,
    PartitionProblem,
    Weight,
)
from solver.model.problem_fields import MemoryModel

T = TypeVar("T")

OperatorKind = Literal["compute", "memory"]
"""Bound of an operator's time: arithmetic, such as a matrix product, or memory traffic."""

SLOWDOWN_PERMILLE: Final[Mapping[str, Mapping[str, int]]] = {
    DEFAULT_DEVICE_CLASS: {"compute": 1000, "memory": 1000},
    "h200-like": {"compute": 1000, "memory": 698},
    "a100-like": {"compute": 3170, "memory": 1643},
    "l40s-like": {"compute": 2732, "memory": 3877},
}
"""Time on a device class per thousand of the time on an H100, by kind of operator.

From the dense bfloat16 rates and memory bandwidths of the data sheets: H100 989 TFLOP/s and
3,350 GB/s, H200 989 and 4,800, A100 80 GB 312 and 2,039, L40S 362 and 864.
"""

_MAX_DEVICES: Final = 1024
_NODE_SIZE: Final = 4
NVLINK: Final = Link(300_000_000_000, 5_000)
_NETWORK: Final = Link(25_000_000_000, 10_000)


class Draws:
    """Random numbers reproducible on every machine and Python release."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, count: int) -> int:
        """Return a whole number from 0 to `count` - 1."""
        return int(self._random() * count)

    def between(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def octaves(self, low: int, octaves: int) -> int:
        """Return a number from `low` to `low` x 2^octaves, about uniform in its logarithm."""
        scaled = low << self.below(octaves)
        return scaled + self.below(scaled)

    def chance(self, permille: int) -> bool:
        """Return True with a probability of `permille` / 1000."""
        return self.below(1000) < permille


@dataclass(frozen=True, slots=True)
class SyntheticOperator:
    """An operator without devices, with its time on the default class and a private weight, or 0.

    `kind` scales the time to other device classes; the operator allocates the bytes of its value.
    """

    name: str
    reads: tuple[str, ...]
    latency_ns: int
    kind: OperatorKind
    value_bytes: int
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SyntheticGraph:
    """Operators in topological order, with the default settings of their problem."""

    operators: tuple[SyntheticOperator, ...]
    interconnect: Interconnect = PCIE
    memory_model: MemoryModel = "inference"

    def problem(
        self, devices: Sequence[Device], *, interconnect: Interconnect | None = None
    ) -> PartitionProblem:
        """Return the problem of placing the operators on `devices`."""
        classes = list(dict.fromkeys(device.device_class for device in devices))
        for name in classes:
            if name not in SLOWDOWN_PERMILLE:
                raise PartitionError(
                    f"device class {name!r} is unknown to generated graphs; "
                    f"write one of {', '.join(SLOWDOWN_PERMILLE)}"
                )
        read = {name for op in self.operators for name in op.reads}
        return PartitionProblem(
            operators=tuple(
                Operator(
                    op.name,
                    _latency(op, classes),
                    op.reads,
                    storage_bytes=op.value_bytes,
                    value_bytes=op.value_bytes,
                    weights=(op.name,) if op.weight_bytes else (),
                    is_output=op.name not in read,
                )
                for op in self.operators
            ),
            devices=tuple(devices),
            weights={op.name: Weight(op.weight_bytes) for op in self.operators if op.weight_bytes},
            interconnect=self.interconnect if interconnect is None else interconnect,
            memory_model=self.memory_model,
        )


def _latency(op: SyntheticOperator, classes: Sequence[str]) -> int | dict[str, int]:
    if classes == [DEFAULT_DEVICE_CLASS]:
        return op.latency_ns
    return {name: op.latency_ns * SLOWDOWN_PERMILLE[name][op.kind] // 1000 for name in classes}


@dataclass(slots=True)
class GraphBuilder:
    """Builder of an operator list."""

    operators: list[SyntheticOperator] = field(default_factory=list)

    def add(
        self,
        label: str,
        reads: Sequence[str],
        latency_ns: int,
        value_bytes: int,
        weight_bytes: int = 0,
        kind: OperatorKind = "memory",
    ) -> str:
        """Add an operator and return its name, made of position and `label`."""
        name = f"{len(self.operators)}.{label}"
        self.operators.append(
            SyntheticOperator(name, tuple(reads), latency_ns, kind, value_bytes, weight_bytes)
        )
        return name


def with_devices(
    graph: SyntheticGraph,
    count: int,
    *,
    slack_permille: int | None = 150,
    unequal: bool = False,
    seed: int = 0,
) -> PartitionProblem:
    """Return the problem of a graph on a number of devices.

    Total capacity is `slack_permille` thousandths beyond the memory of the whole graph on one
    device; unlimited for None. Unequal devices have capacities in the proportions 4:3:2:1,
    repeated, classes drawn from `SLOWDOWN_PERMILLE`, fast links among each four, and a network
    between; `seed` is for the order of their capacities and classes.
    """
    if not 1 <= count <= _MAX_DEVICES:
        raise PartitionError(f"devices is {count}; write a whole number from 1 to {_MAX_DEVICES}")
    shares, classes = [1] * count, [DEFAULT_DEVICE_CLASS] * count
    interconnect = graph.interconnect
    if unequal:
        draws = Draws(seed)
        shares = _shuffled([UNEQUAL_SHARES[i % len(UNEQUAL_SHARES)] for i in range(count)], draws)
        names = list(SLOWDOWN_PERMILLE)
        classes = _shuffled([names[i % len(names)] for i in range(count)], draws)
        interconnect = _clustered([f"gpu:{i}" for i in range(count)], graph.interconnect)
    capacities: list[int | None] = [None] * count
    if slack_permille is not None:
        need_bytes = max(1, one_device_bytes(graph.problem((Device("all"),))))
        total = sum(shares)
        capacities = [
            -(-need_bytes * share * (1000 + slack_permille) // (1000 * total)) for share in shares
        ]
    devices = [
        Device(f"gpu:{i}", capacity, device_class)
        for i, (capacity, device_class) in enumerate(zip(capacities, classes, strict=True))
    ]
    return graph.problem(devices, interconnect=interconnect)


def _shuffled(items: list[T], draws: Draws) -> list[T]:
    # Fisher and Yates; random.shuffle may change between releases.
    for last in range(len(items) - 1, 0, -1):
        other = draws.below(last + 1)
        items[last], items[other] = items[other], items[last]
    return items


def _clustered(names: Sequence[str], given: Interconnect) -> Interconnect:
    """Return fast links within each four devices and a network between; keep host staging."""
    if given.charging == "host_staged":
        return given
    links = {
        (source, target): NVLINK
        for i, source in enumerate(names)
        for j, target in enumerate(names)
        if i != j and i // _NODE_SIZE == j // _NODE_SIZE
    }
    return Interconnect(_NETWORK, links)
