"""Plans: the device, chunk and mode of each operator, and the order of devices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, get_args

from solver.model.checks import (
    as_mapping,
    as_name,
    check_choice,
    check_name,
    check_natural,
    only_given,
    remake,
    several,
)
from solver.model.errors import PartitionError
from solver.model.problem import PartitionProblem
from solver.model.text import shown

Group = TypeVar("Group", bound=Hashable)
Mode = Literal["resident", "streamed"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
"""Modes of an operator: its weights stay on the device, or are loaded from the host for each
run."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The operators of one device in one chunk."""

    device: str
    chunk: int = 0
    __repr__ = only_given

    def __str__(self) -> str:
        return f"{self.device} (chunk {self.chunk})" if self.chunk else self.device


@dataclass(frozen=True)
class PartitionPlan:
    """A total map from operators to devices, with the used devices in order.

    With several chunks per device (interleaved, "virtual" pipeline stages; Narayanan et al.,
    "Efficient Large-Scale Language Model Training on GPU Clusters", 2021, section 2.2) data
    flows through the devices in one order, once for every chunk.

    Parameters
    ----------
    assignment : mapping of str to str
        Operator name to device name.
    device_order : tuple of str
        The used devices, each once, in the order of data flow. If the quotient graph has a cycle,
        there is no such order: the used devices are then listed in any order, and
        :func:`solver.evaluation.evaluate.evaluate` names the cycle.
    chunks : mapping of str to int
        Operator name to chunk, 0 by default. Chunks are renumbered so that the smallest one used
        is 0, and operators of chunk 0 are left out, so that equivalent plans are equal.
    recomputed : frozenset of str
        Recomputed operators with a storage of their own (:mod:`solver.model.recomputation`).
    region_starts : tuple of str
        First operators of the problem's regions of recomputation, the first region included.
        Empty if nothing is recomputed, or if the plan does not record the regions.
    mode_of : mapping of str to str
        Operator name to one of `MODES`, ``"resident"`` by default. An operator that runs on the
        host is on the device :data:`solver.model.devices.STAGING_HOST`.

    Raises
    ------
    PartitionError
        If `device_order` is not the used devices, or `chunks` has an unknown operator or a chunk
        that is no number.
    """

    assignment: Mapping[str, str]
    device_order: tuple[str, ...]
    chunks: Mapping[str, int] = field(default_factory=dict)
    recomputed: frozenset[str] = frozenset()
    region_starts: tuple[str, ...] = ()
    mode_of: Mapping[str, Mode] = field(default_factory=dict)
    __repr__ = only_given

    def __post_init__(self) -> None:
        assignment = as_mapping(self.assignment, "assignment", str)
        object.__setattr__(self, "assignment", MappingProxyType(assignment))
        order = several(self.device_order, "device_order")
        for name in order:
            check_name(name, "an entry of device_order")
        object.__setattr__(self, "device_order", order)
        used = set(assignment.values())
        if len(set(self.device_order)) != len(self.device_order) or set(self.device_order) != used:
            raise PartitionError(
                f"device_order is {shown(list(self.device_order))} but the operators use "
                f"{shown(sorted(used))}; list every used device exactly once"
            )
        for operator, chunk in as_mapping(self.chunks, "chunks").items():
            if operator not in self.assignment:
                raise PartitionError(
                    f"chunks names {shown(operator)}, which has no device; assign it one"
                )
            check_natural(chunk, f"chunks[{operator!r}]")
        object.__setattr__(self, "recomputed", frozenset(self.recomputed))
        starts = tuple(self.region_starts) if self.recomputed else ()
        object.__setattr__(self, "region_starts", starts)
        mode_of = as_mapping(self.mode_of, "mode_of", str)
        for name, mode in mode_of.items():
            check_choice(mode, MODES, f"mode of {name!r}")
        others = {name: mode for name, mode in mode_of.items() if mode != "resident"}
        object.__setattr__(self, "mode_of", MappingProxyType(others))
        for attribute in ("recomputed", "region_starts", "mode_of"):
            for name in sorted(getattr(self, attribute)):
                if name not in self.assignment:
                    raise PartitionError(
                        f"{attribute} names {name!r}, which has no device; assign it one"
                    )
        least = 0
        if self.chunks and len(self.chunks) == len(self.assignment):
            least = min(self.chunks.values())
        chunks = {name: chunk - least for name, chunk in self.chunks.items() if chunk > least}
        object.__setattr__(self, "chunks", MappingProxyType(chunks))

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    @classmethod
    def from_assignment(
        cls,
        problem: PartitionProblem,
        assignment: Mapping[str, str] | Mapping[int, str],
        chunks: Mapping[str, int] | None = None,
    ) -> PartitionPlan:
        """Build a plan from an assignment, and derive the order of the devices.

        Operators may be named by whole numbers, as nodes of a graph are.

        The order is a topological order of data flow within every chunk, with ties broken by the
        first operator of each device. If there is none, devices are ordered by first operator.

        Raises
        ------
        PartitionError
            If an operator is missing, unknown, or on an unknown device, or a chunk is wrong.
        """
        assignment = _named(problem, assignment)
        first_seen = tuple(dict.fromkeys(assignment[op.name] for op in problem.operators))
        unordered = cls(assignment, first_seen, chunks or {})
        successors: dict[str, set[str]] = {device: set() for device in first_seen}
        for arc in quotient_arcs(problem, unordered.stage_index):
            source, target = (unordered.stages[index] for index in arc)
            # Arcs between chunks do not constrain the order of devices.
            if source.chunk == target.chunk:
                successors[source.device].add(target.device)
        indegree = dict.fromkeys(first_seen, 0)
        for targets in successors.values():
            for device in targets:
                indegree[device] += 1
        order: list[str] = []
        remaining = list(first_seen)
        while remaining:
            ready = next((device for device in remaining if indegree[device] == 0), None)
            if ready is None:
                return unordered
            remaining.remove(ready)
            order.append(ready)
            for device in successors[ready]:
                indegree[device] -= 1
        return cls(assignment, tuple(order), unordered.chunks)

    @cached_property
    def modes(self) -> Mapping[str, Mode]:
        """The mode of every operator, by name."""
        return {name: self.mode_of.get(name, "resident") for name in self.assignment}

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages with operators, by chunk and then by device order."""
        if not self.chunks:
            return tuple(Stage(device) for device in self.device_order)
        rank = {device: rank for rank, device in enumerate(self.device_order)}
        used = {(self.chunks.get(name, 0), rank[dev]) for name, dev in self.assignment.items()}
        return tuple(Stage(self.device_order[rank], chunk) for chunk, rank in sorted(used))

    @cached_property
    def stage_index(self) -> Mapping[str, int]:
        """The index in `stages` of every operator's stage, by name."""
        position = {(stage.device, stage.chunk): at for at, stage in enumerate(self.stages)}
        if not self.chunks:
            rank = {device: at for (device, _), at in position.items()}
            return MappingProxyType({name: rank[dev] for name, dev in self.assignment.items()})
        return MappingProxyType(
            {
                name: position[device, self.chunks.get(name, 0)]
                for name, device in self.assignment.items()
            }
        )

    def restricted(self, operators: Iterable[str]) -> PartitionPlan:
        """Return the plan of some of the operators, without recomputation."""
        assignment = {name: self.assignment[name] for name in operators}
        used = set(assignment.values())
        return PartitionPlan(
            assignment,
            tuple(device for device in self.device_order if device in used),
            {name: self.chunks.get(name, 0) for name in assignment},
            mode_of={name: mode for name, mode in self.mode_of.items() if name in assignment},
        )

    def stage_of(self, operator: str) -> Stage:
        """Return the stage of `operator`."""
        return self.stages[self.stage_index[operator]]

    def operators_of(self, device: str) -> tuple[str, ...]:
        """Return the operators of all chunks of `device`, in the order of `assignment`."""
        return tuple(op for op, where in self.assignment.items() if where == device)


def check_assignment(problem: PartitionProblem, assignment: Mapping[str, str]) -> None:
    """Raise PartitionError unless `assignment` maps exactly the operators to known devices."""
    if (
        assignment.keys() == problem.index_of.keys()
        and set(assignment.values()) <= problem.device_of.keys()
    ):
        return
    for op in problem.operators:
        if op.name not in assignment:
            raise PartitionError(f"the plan has no device for operator {op.name!r}; write one")
        if assignment[op.name] not in problem.device_of:
            raise PartitionError(
                f"the plan puts operator {op.name!r} on {assignment[op.name]!r}; the devices "
                f"are {', '.join(device.name for device in problem.devices)}"
            )
    for name in assignment:
        if name not in problem.index_of:
            raise PartitionError(
                f"the plan places {name!r}, which is not an operator; leave it out"
            )


def _named(
    problem: PartitionProblem, assignment: Mapping[str, str] | Mapping[int, str]
) -> dict[str, str]:
    """Return an assignment by names; raise PartitionError unless it covers all operators."""
    named: dict[str, str] = {}
    for given, device in as_mapping(assignment, "assignment").items():
        name = as_name(given, "assignment: an operator")
        if name in named:
            raise PartitionError(f"the plan places {name!r} as a number and as a text; keep one")
        if not isinstance(device, str):
            names = ", ".join(device.name for device in problem.devices)
            raise PartitionError(
                f"the plan puts operator {name!r} on {shown(device)}; the devices are {names}"
            )
        named[name] = device
    check_assignment(problem, named)
    return named


def repair_colocation(
    problem: PartitionProblem, assignment: Mapping[str, str] | Mapping[int, str]
) -> dict[str, str]:
    """Move the operators of each colocation group to one allowed device.

    Each group goes to the device that has most of its time, with ties broken by the group's
    largest operator; if its members may run on none of its devices, to the first one allowed for
    all. Overlapping groups are merged, and operators pinned to one stage form a group. Other
    operators stay.

    Parameters
    ----------
    assignment : mapping of str or int to str
        Device of every operator, such as the parts found by a general graph partitioner.

    Returns
    -------
    dict
        Device by operator. It may exceed memory or have cyclic stages even if `assignment` did
        not; :func:`~solver.evaluation.evaluate.evaluate` reports both.

    Raises
    ------
    PartitionError
        If an operator is missing, unknown, or on an unknown device.

    Examples
    --------
    >>> from solver import ColocationGroup, Device, Operator
    >>> operators = (Operator("a", 3), Operator("b", 5, ("a",)), Operator("c", 1, ("b",)))
    >>> devices = (Device("gpu0"), Device("gpu1"))
    >>> problem = PartitionProblem(operators, devices, colocation=(ColocationGroup(("a", "b")),))
    >>> repair_colocation(problem, {"a": "gpu0", "b": "gpu1", "c": "gpu0"})
    {'a': 'gpu1', 'b': 'gpu1', 'c': 'gpu0'}
    """
    repaired = _named(problem, assignment)
    for unit in problem.units:
        members = [problem.operators[problem.index_of[name]] for name in unit]
        shares: dict[str, list[int]] = {}
        for device in problem.devices:
            if all(device.name in (op.allowed_devices or (device.name,)) for op in members):
                there = [op for op in members if repaired[op.name] == device.name]
                times = [op.latency_on(device.device_class) for op in there]
                shares[device.name] = [sum(times), max(times, default=0), len(there)]
        # The first device of the largest share; `check_colocation` ensures that one exists.
        repaired.update(dict.fromkeys(unit, max(shares, key=shares.__getitem__)))
    return repaired


def quotient_arcs(
    problem: PartitionProblem, group_of: Mapping[str, Group]
) -> tuple[tuple[Group, Group], ...]:
    """Return the arcs of the quotient graph: pairs of groups crossed by a forward edge.

    `group_of` has the stage, device or other group of every operator, by name.
    """
    arcs: dict[tuple[Group, Group], None] = {}
    for op in problem.operators:
        if op.is_backward:
            continue
        target = group_of[op.name]
        for read in op.reads:
            if (
                read in problem.index_of
                and not problem.operators[problem.index_of[read]].is_backward
            ):
                source = group_of[read]
                if source != target:
                    arcs[source, target] = None
    return tuple(arcs)
