"""Instances of the partitioning problem: operators, weights, limits and objectives.

``docs/definition.md`` gives the semantics of every field; costs and feasibility are defined only
in :mod:`solver.evaluation.evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal

from solver.model.arrays import ProblemArrays
from solver.model.checks import (
    as_mapping,
    check_choice,
    check_name,
    check_natural,
    check_positive,
    check_positive_or_none,
    instances,
    only_given,
    remake,
    several,
)
from solver.model.colocation import merged
from solver.model.cut_checks import check_hand_made, ordered_cuts
from solver.model.cuts import blocks_of
from solver.model.device_text import as_devices
from solver.model.devices import Device, Interconnect
from solver.model.errors import PartitionError
from solver.model.holdings import (
    Holding,
    StorageGraph,
    holdings_of,
    least_holdings,
    least_saved_bytes,
)
from solver.model.operators import Operator
from solver.model.problem_checks import (
    check_colocation,
    check_devices,
    check_graph,
    check_totals,
    totals_of,
)
from solver.model.training import RECOMPUTE, SCHEDULES, RecomputeRule, Schedule

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
class PartitionProblem:
    """An immutable, validated instance. Change it with :meth:`replace`.

    Parameters
    ----------
    operators : sequence of Operator
        In execution order, which must be a topological order of `Operator.reads`.
    devices : sequence of Device, or str
        Devices from which a plan chooses a subset and an order; also as text such as
        ``"24GB,12GB"``, ``"2x24GB@rtx-4090"`` or ``"auto"``; see
        :func:`solver.model.device_text.read_devices`.
    weights : mapping of str to Weight
        One key per storage; tied parameters share a key.
    objective : str or sequence of str
        One of `OBJECTIVES`, or several to be minimised lexicographically.
    memory_model : {"weights", "inference", "training"}
        Contents of device memory: weights alone, or also the tensors of inference or training.
    schedule : {"gpipe", "1f1b"}
        Order of passes (:func:`solver.model.schedules.action_tables`). It determines the objective
        ``step`` and, in training, the microbatches in flight and thus memory. With several
        chunks ``1f1b`` is interleaved. Other memory models have forward passes alone, in the same
        order.
    microbatches : int
        Microbatches per step, for the objective ``step``; pipelines hold the received and sent
        values of all of them.
    chunks_per_device : int
        Most stages of a device: data may pass through the devices up to this many times
        (interleaved, "virtual" stages).
    max_devices : int, optional
        Most devices that a plan may use; None allows all.
    cuts : sequence of str
        Operators after which, in execution order, a stage ends; see :mod:`solver.model.cuts`.
    recompute : {"none", "auto", "layers"}
        Recomputation allowed in training: none, any operators that the plan names, or all or
        nothing of each region (:mod:`solver.model.recomputation`).

    Raises
    ------
    PartitionError
        If the fields are inconsistent; the message names the item and the remedy.
    """

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
    __repr__ = only_given

    def __post_init__(self) -> None:
        for attribute, kind in (
            ("operators", Operator),
            ("inputs", GraphInput),
            ("colocation", ColocationGroup),
        ):
            items = instances(getattr(self, attribute), kind, attribute)
            object.__setattr__(self, attribute, items)
        object.__setattr__(self, "devices", as_devices(self.devices))
        weights = as_mapping(self.weights, "weights", Weight)
        object.__setattr__(self, "weights", MappingProxyType(weights))
        objective: Any = self.objective
        if isinstance(objective, str) or not isinstance(objective, Iterable):
            objective = (objective,)
        object.__setattr__(self, "objective", tuple(objective))
        self._check_settings()
        check_devices(self)
        check_graph(self)
        check_colocation(self)
        object.__setattr__(self, "cuts", ordered_cuts(self.operators, self.cuts))
        check_hand_made(self)
        check_totals(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Drop the derived tables; they are rebuilt on demand.
        return remake(self)

    def replace(self, **changes: Any) -> PartitionProblem:
        """Return a validated copy with `changes` applied."""
        if [*changes] == ["weights"]:
            weights = as_mapping(changes["weights"], "weights", Weight)
            if weights.keys() == self.weights.keys():
                return self._resized(weights)
        return replace(self, **changes)

    def _resized(self, weights: Mapping[str, Weight]) -> PartitionProblem:
        """Return a copy with other weight sizes; only the tables that depend on them are reset."""
        if weights == self.weights:
            return self
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, weights=MappingProxyType(weights))
        for table in ("arrays", "storage_graph"):
            made.__dict__.pop(table, None)
        check_totals(made)
        return made

    @property
    def memory_depends_on_followers(self) -> bool:
        """True if a stage's memory depends on the number of stages after it."""
        return self.memory_model == "training" and self.schedule == "1f1b"

    # -- derived tables -------------------------------------------------------------------

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
    def totals(self) -> tuple[int, int]:
        """Bytes (without weights) and nanoseconds of all possible costs together."""
        return totals_of(self)

    @cached_property
    def arrays(self) -> ProblemArrays:
        """The numbers of the problem as arrays; see :mod:`solver.model.arrays`."""
        return ProblemArrays(self)

    @cached_property
    def holdings(self) -> tuple[Holding, ...]:
        """Holdings of stages by operator; see :mod:`solver.model.holdings`."""
        return holdings_of(self)

    @cached_property
    def storage_graph(self) -> StorageGraph:
        """Producers, readers and savers of each storage."""
        return StorageGraph(self)

    @cached_property
    def least_holdings(self) -> tuple[Holding, ...]:
        """Holdings of stages under any recomputation; see :mod:`solver.model.holdings`."""
        return least_holdings(self)

    @cached_property
    def least_holdings_of(self) -> tuple[tuple[Holding, ...], ...]:
        """`least_holdings` by operator."""
        found: list[list[Holding]] = [[] for _ in self.operators]
        for holding in self.least_holdings:
            found[holding.operator].append(holding)
        return tuple(map(tuple, found))

    @cached_property
    def least_saved_bytes(self) -> tuple[int, ...]:
        """Bytes kept of one microbatch under any recomputation, by operator."""
        return least_saved_bytes(self)

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
        return blocks_of(self)

    # -- validation -----------------------------------------------------------------------

    def _check_settings(self) -> None:
        if not self.objective:
            raise PartitionError(f"objective is empty; write one of {', '.join(OBJECTIVES)}")
        for name in self.objective:
            check_choice(name, OBJECTIVES, "objective")
        if len(set(self.objective)) != len(self.objective):
            raise PartitionError(f"objective {self.objective} names one twice; name each once")
        check_choice(self.memory_model, MEMORY_MODELS, "memory_model")
        check_choice(self.schedule, SCHEDULES, "schedule")
        check_choice(self.recompute, RECOMPUTE, "recompute")
        check_positive(self.microbatches, "microbatches")
        check_positive(self.chunks_per_device, "chunks_per_device")
        check_positive_or_none(self.max_devices, "max_devices", "no limit")
