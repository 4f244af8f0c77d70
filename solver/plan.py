"""What an answer is: every operator on a device, devices in stage order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from solver.errors import PartitionError
from solver.problem import PartitionProblem


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A total map from operators to devices, with the used devices in stage order.

    Parameters
    ----------
    assignment : mapping of str to str
        Operator name to device name.
    stages : tuple of str
        The used devices, each once, in the order in which data flows through them.
        A plan whose quotient graph has a cycle has no such order; its `stages` are
        then only the used devices, and :func:`solver.evaluate.evaluate` names the cycle.
    """

    assignment: Mapping[str, str]
    stages: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "assignment", MappingProxyType(dict(self.assignment)))
        object.__setattr__(self, "stages", tuple(self.stages))
        used = set(self.assignment.values())
        if len(set(self.stages)) != len(self.stages) or set(self.stages) != used:
            raise PartitionError(
                f"stages are {list(self.stages)} but the operators use {sorted(used)}; "
                "list every used device exactly once"
            )

    @classmethod
    def from_assignment(
        cls, problem: PartitionProblem, assignment: Mapping[str, str]
    ) -> PartitionPlan:
        """Build a plan from an assignment alone, finding the stage order.

        Among the topological orders of the quotient graph it takes the one that prefers
        the device whose first operator comes first. With a cycle, devices stand in the
        order of their first operator.

        Raises
        ------
        PartitionError
            If an operator is missing, unknown, or on an unknown device.
        """
        check_assignment(problem, assignment)
        first_seen = tuple(dict.fromkeys(assignment[op.name] for op in problem.operators))
        successors: dict[str, set[str]] = {device: set() for device in first_seen}
        for source, target in quotient_arcs(problem, assignment):
            successors[source].add(target)
        indegree = dict.fromkeys(first_seen, 0)
        for targets in successors.values():
            for target in targets:
                indegree[target] += 1
        stages: list[str] = []
        remaining = list(first_seen)
        while remaining:
            ready = next((device for device in remaining if indegree[device] == 0), None)
            if ready is None:
                return cls(assignment, first_seen)
            remaining.remove(ready)
            stages.append(ready)
            for target in successors[ready]:
                indegree[target] -= 1
        return cls(assignment, tuple(stages))

    def operators_of(self, device: str) -> tuple[str, ...]:
        """Return the operators on `device`, in the order of `assignment`."""
        return tuple(op for op, where in self.assignment.items() if where == device)


def check_assignment(problem: PartitionProblem, assignment: Mapping[str, str]) -> None:
    """Raise PartitionError unless `assignment` maps exactly the operators to known devices."""
    for op in problem.operators:
        if op.name not in assignment:
            raise PartitionError(f"the plan has no device for operator {op.name!r}")
        if assignment[op.name] not in problem.device_of:
            raise PartitionError(
                f"the plan puts operator {op.name!r} on {assignment[op.name]!r}; the devices "
                f"are {', '.join(device.name for device in problem.devices)}"
            )
    for name in assignment:
        if name not in problem.index_of:
            raise PartitionError(f"the plan places {name!r}, which is not an operator")


def quotient_arcs(
    problem: PartitionProblem, assignment: Mapping[str, str]
) -> Iterable[tuple[str, str]]:
    """Yield the arcs of the quotient graph: device pairs crossed by a forward edge."""
    arcs: dict[tuple[str, str], None] = {}
    for op in problem.operators:
        if op.is_backward:
            continue
        target = assignment[op.name]
        for read in op.reads:
            if (
                read in problem.index_of
                and not problem.operators[problem.index_of[read]].is_backward
            ):
                source = assignment[read]
                if source != target:
                    arcs[source, target] = None
    return tuple(arcs)
