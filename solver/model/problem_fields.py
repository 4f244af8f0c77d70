"""Fields of a problem, and the tables that they determine.

:class:`solver.model.problem.PartitionProblem` adds the checks, and the tables of other modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from solver.model.checks import check_name, check_natural, only_given, several
from solver.model.colocation import merged
from solver.model.devices import Device, Interconnect
from solver.model.operators import Operator
from solver.model.training import RecomputeRule, Schedule, most_in_flight

MemoryModel = Literal["weights", "inference", "training"]
ObjectiveName = Literal["devices", "transfer", "bottleneck", "latency", "peak_memory", "step"]

MEMORY_MODELS: Final[tuple[str, ...]] = ("weights", "inference", "training")
"""Contents of device memory: weights alone, or also the tensors of inference or training."""
OBJECTIVES: Final[tuple[str, ...]] = (
    "devices",
    "transfer",
    "bottleneck",
    "latency",
    "peak_memory",
    "step",
)
"""Objectives to minimise, alone or lexicographically."""
NO_BLOCK: Final = -1
"""The block of an operator of a backward pass; see :mod:`solver.model.cuts`."""


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An argument of the graph; it is not assigned to a device.

    Every device with a reader holds its `value_bytes` until its stage ends.
    """

    name: str
    value_bytes: int = 0
    __repr__ = only_given

    def __post_init__(self) -> None:
        check_name(self.name, "graph input name")
        check_natural(self.value_bytes, f"graph input {self.name!r}: value_bytes")


@dataclass(frozen=True, slots=True)
class Weight:
    """The storage of a parameter or buffer, held once by every device with a reader.

    Parameters
    ----------
    size_bytes : int
        Bytes of the storage; charged under the memory models ``weights`` and ``inference``.
    training_bytes : int, optional
        Bytes of weight, gradient, optimiser state and master copy together; charged under
        ``training``. None stands for `size_bytes` (a buffer).
    """

    size_bytes: int
    training_bytes: int | None = None
    __repr__ = only_given

    def __post_init__(self) -> None:
        check_natural(self.size_bytes, "weight size_bytes")
        if self.training_bytes is not None:
            check_natural(self.training_bytes, "weight training_bytes")

    def held_bytes(self, memory_model: MemoryModel) -> int:
        """Return the bytes that a device holds for the weight under `memory_model`."""
        if memory_model == "training" and self.training_bytes is not None:
            return self.training_bytes
        return self.size_bytes


@dataclass(frozen=True, slots=True)
class ColocationGroup:
    """Operators that must share a device, and the reason in words."""

    operators: tuple[str, ...]
    reason: str = "given by the caller"
    __repr__ = only_given

    def __post_init__(self) -> None:
        names = several(self.operators, f"colocation group ({self.reason}): operators")
        for item in names:
            check_name(item, f"colocation group ({self.reason}): an operator name")
        object.__setattr__(self, "operators", tuple(dict.fromkeys(names)))


@dataclass(frozen=True)
class ProblemFields:
    """The fields of :class:`solver.model.problem.PartitionProblem`, described there."""

    operators: tuple[Operator, ...]
    devices: tuple[Device, ...]
    inputs: tuple[GraphInput, ...] = ()
    weights: Mapping[str, Weight] = field(default_factory=dict)
    colocation: tuple[ColocationGroup, ...] = ()
    interconnect: Interconnect = field(default_factory=Interconnect)
    objective: tuple[ObjectiveName, ...] = ("bottleneck",)
    memory_model: MemoryModel = "inference"
    schedule: Schedule = "1f1b"
    microbatches: int = 1
    chunks_per_device: int = 1
    max_devices: int | None = None
    cuts: tuple[str, ...] = ()
    recompute: RecomputeRule = "none"
    times_from: Mapping[str, str] = field(default_factory=dict)
    __repr__ = only_given

    @property
    def is_hand_made(self) -> bool:
        """True if the problem has cuts or pinned stages."""
        return bool(self.cuts or self.stage_pins)

    @property
    def most_devices(self) -> int:
        """The most devices that a plan may use."""
        return min(self.max_devices or len(self.devices), len(self.devices))

    def in_flight(self, following: int) -> int:
        """Return the microbatches in flight on the first of the last `following` devices.

        With several chunks per device it depends on the number of all devices; the most is
        counted. Without a backward pass there is one.
        """
        if not self.is_training:
            return 1
        most = len(self.devices) if self.chunks_per_device > 1 else following
        followers = following - 1
        return max(self.in_flight_of(n, followers) for n in range(following, most + 1))

    def in_flight_of(self, devices: int, followers: int, later_chunks: int = 0) -> int:
        """Return :func:`solver.model.training.most_in_flight` of a stage of the problem."""
        return most_in_flight(
            self.schedule,
            self.microbatches,
            chunks=self.chunks_per_device,
            devices=devices,
            followers=followers,
            later_chunks=later_chunks,
        )

    @property
    def memory_grows(self) -> bool:
        """True if a stage that runs less never holds more."""
        # Other models count received values, which a stage without their producer has.
        return self.memory_model == "weights"

    @property
    def memory_depends_on_followers(self) -> bool:
        """True if a stage's memory depends on the number of stages after it."""
        return self.memory_model == "training" and self.schedule == "1f1b"

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        """Position of every operator in the execution order, by name."""
        return {op.name: index for index, op in enumerate(self.operators)}

    @cached_property
    def input_of(self) -> Mapping[str, GraphInput]:
        """Graph inputs by name."""
        return {graph_input.name: graph_input for graph_input in self.inputs}

    @cached_property
    def device_of(self) -> Mapping[str, Device]:
        """Devices by name."""
        return {device.name: device for device in self.devices}

    @cached_property
    def readers_of(self) -> Mapping[str, tuple[str, ...]]:
        """Readers of every operator and graph input, in execution order, by name."""
        readers: dict[str, list[str]] = {g.name: [] for g in self.inputs}
        readers.update((op.name, []) for op in self.operators)
        for op in self.operators:
            for source in op.reads:
                readers[source].append(op.name)
        return {name: tuple(names) for name, names in readers.items()}

    @cached_property
    def root_of(self) -> Mapping[str, str]:
        """The operator or graph input that owns the storage of each value, by name."""
        roots = {graph_input.name: graph_input.name for graph_input in self.inputs}
        for op in self.operators:
            roots[op.name] = op.name if op.alias_of is None else roots[op.alias_of]
        return roots

    @cached_property
    def is_forward_only(self) -> bool:
        """True if every device has one stage, and values go to later stages alone."""
        return self.chunks_per_device == 1 and not any(op.is_backward for op in self.operators)

    @property
    def is_training(self) -> bool:
        """True if the backward passes of operators count."""
        return self.memory_model == "training"

    @cached_property
    def may_recompute(self) -> bool:
        """True if a plan may recompute operators."""
        is_allowed = self.is_training and self.recompute != "none"
        return is_allowed and any(op.backward.recomputable for op in self.operators)

    @property
    def has_choices(self) -> bool:
        """True if a plan chooses within its stages: time against memory, operator by operator."""
        return self.may_recompute

    @cached_property
    def must_recompute(self) -> bool:
        """True if a plan may have to recompute some operators."""
        return self.may_recompute and any(op.backward.must_recompute for op in self.operators)

    @cached_property
    def region_starts(self) -> tuple[str, ...]:
        """The first operator of every region of recomputation."""
        first: dict[int, str] = {}
        for op in self.operators:
            first.setdefault(op.backward.region, op.name)
        return tuple(first.values())

    @cached_property
    def units(self) -> tuple[tuple[str, ...], ...]:
        """The operators merged by overlapping colocation groups, in execution order.

        A partition of all operators: each unit shares a stage, and most are single operators.
        Operators pinned to the same stage form a group too.
        """
        pinned: dict[int, list[str]] = {}
        for name, stage in self.stage_pins.items():
            pinned.setdefault(stage, []).append(name)
        given = (group.operators for group in self.colocation)
        return merged([op.name for op in self.operators], (*given, *pinned.values()))

    @cached_property
    def stage_pins(self) -> Mapping[str, int]:
        """The stage of every pinned operator, by name."""
        return {op.name: op.stage for op in self.operators if op.stage is not None}

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """The block of every operator; see :mod:`solver.model.cuts`."""
        cuts = set(self.cuts)
        block = 0
        blocks: list[int] = []
        for op in self.operators:
            blocks.append(NO_BLOCK if op.is_backward else block)
            block += op.name in cuts
        return tuple(blocks)
