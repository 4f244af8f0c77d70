"""Instances of the partitioning problem: operators, weights, limits and objectives.

``docs/definition.md`` gives the semantics of every field; costs and feasibility are defined only
in :mod:`solver.evaluation.evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from solver.model.arrays import HoldingArrays, ProblemArrays
from solver.model.checks import (
    as_mapping,
    check_choice,
    check_positive,
    check_positive_or_none,
    instances,
    remake,
)
from solver.model.cut_checks import check_hand_made, ordered_cuts
from solver.model.device_text import as_devices
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
    MOST_CHUNKS,
    check_colocation,
    check_devices,
    check_graph,
    check_totals,
    totals_of,
)
from solver.model.problem_fields import (
    MEMORY_MODELS,
    OBJECTIVES,
    ColocationGroup,
    GraphInput,
    ProblemFields,
    Weight,
)
from solver.model.text import shown
from solver.model.training import RECOMPUTE, SCHEDULES


@dataclass(frozen=True, repr=False)
class PartitionProblem(ProblemFields):
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
    times_from : mapping of str to str
        Origin of the times in a few words, by device class; for people.

    Raises
    ------
    PartitionError
        If the fields are inconsistent; the message names the item and the remedy.
    """

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
        sources = as_mapping(self.times_from, "times_from", str)
        object.__setattr__(self, "times_from", MappingProxyType(sources))
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
        check_totals(self, self.totals)

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
        """Return a copy with other weight sizes; only the table that depends on them is reset."""
        if weights == self.weights:
            return self
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, weights=MappingProxyType(weights))
        made.__dict__.pop("arrays", None)
        check_totals(made, made.totals)
        return made

    # -- derived tables -------------------------------------------------------------------

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
    def holding_arrays(self) -> HoldingArrays:
        """`holdings` as arrays."""
        return HoldingArrays.of(self.holdings)

    @cached_property
    def storage_graph(self) -> StorageGraph:
        """Producers, readers and savers of each storage."""
        return StorageGraph(self, self.holdings)

    @cached_property
    def least_holdings(self) -> tuple[Holding, ...]:
        """Holdings of stages under any recomputation; see :mod:`solver.model.holdings`."""
        return least_holdings(self, self.holdings)

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
        check_positive(self.chunks_per_device, "chunks_per_device", MOST_CHUNKS)
        check_positive_or_none(self.max_devices, "max_devices", "no limit")


def check_problem(problem: object) -> None:
    """Raise PartitionError unless `problem` is a `PartitionProblem`."""
    if not isinstance(problem, PartitionProblem):
        made = "problem_from_digraph(...)" if hasattr(problem, "succ") else "a PartitionProblem"
        raise PartitionError(f"problem is {shown(problem)}; write {made}")
