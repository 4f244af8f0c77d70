"""Checks that a captured graph can be split by a plan; errors name the operators in conflict."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import networkx as nx

from fx_bridge.capture.graph import CapturedGraph, check_captured
from fx_bridge.split.colocation import inseparable_groups
from solver import PartitionError, PartitionPlan, PartitionProblem
from solver.model.quantities import counted

Group = TypeVar("Group", bound=Hashable)


def check_splittable(captured: CapturedGraph, plan: PartitionPlan) -> None:
    """Raise PartitionError unless the stages of `plan`, run in order, compute what `captured` does.

    The plan must be total, data must flow only to the same or later stages, and operators linked
    by the order of their effects must not be separated.
    """
    check_total(captured, plan)
    _check_order(captured, plan)
    check_effects(captured, plan, "stage" if plan.chunks else "device")


def crossing_edges(
    captured: CapturedGraph, group_of: Mapping[str, Group]
) -> dict[tuple[Group, Group], tuple[str, str]]:
    """Return the pairs of groups between which values pass, each with one example of an edge."""
    example: dict[tuple[Group, Group], tuple[str, str]] = {}
    for node in captured.operators:
        for source in node.all_input_nodes:
            if source.name in group_of and group_of[source.name] != group_of[node.name]:
                arc = group_of[source.name], group_of[node.name]
                example.setdefault(arc, (source.name, node.name))
    return example


def check_effects(captured: CapturedGraph, plan: PartitionPlan, unit: str) -> None:
    """Raise PartitionError if the plan would change the order of effects that edges do not show.

    `unit` is the caller's word for a group of operators: ``"device"``, ``"stage"``, ``"tag"``.
    """
    stage_of = plan.stage_index
    for group in inseparable_groups(captured):
        first = group.operators[0]
        for other in group.operators[1:]:
            if stage_of[other] != stage_of[first]:
                here, there = str(plan.stage_of(first)), str(plan.stage_of(other))
                raise PartitionError(
                    f"operators {first!r} and {other!r} are on {here!r} and {there!r} but must "
                    f"share a {unit}: {group.reason}"
                )
    latest: str | None = None
    for node in captured.random_operators:
        if latest is not None and stage_of[node.name] < stage_of[latest]:
            here, there = str(plan.stage_of(latest)), str(plan.stage_of(node.name))
            raise PartitionError(
                f"operators {latest!r} on {here!r} and {node.name!r} on {there!r} would draw their "
                f"random numbers in the opposite order; put them on one {unit}, or the second on "
                "a later one"
            )
        latest = node.name


def check_total(captured: CapturedGraph, plan: PartitionPlan) -> None:
    """Raise PartitionError unless `plan` places exactly the operators of `captured`."""
    check_captured(captured, "use a plan of", "capture(model, args)")
    if not isinstance(plan, PartitionPlan):
        raise PartitionError(
            f"the plan is a {type(plan).__name__}; give a PartitionPlan, such as result.plan, or "
            "one that solver.load_plan reads from a file"
        )
    names = [node.name for node in captured.operators]
    missing = [name for name in names if name not in plan.assignment]
    unknown = sorted(plan.assignment.keys() - set(names))
    others = ""
    remedy = (
        "it is a plan of another graph; make one of this model, with these inputs, and capture "
        "it as for the plan (constants, check)"
    )
    if missing:
        if len(missing) > 1:
            others = f" and {len(missing) - 1} more"
        raise PartitionError(
            f"the plan has no device for operator {missing[0]!r}{others}: {remedy}"
        )
    if unknown:
        if len(unknown) > 1:
            are = "is" if len(unknown) == 2 else "are"
            others = f" (nor {are} {counted(len(unknown) - 1, 'other')})"
        raise PartitionError(
            f"the plan places {unknown[0]!r}, which is not an operator of the graph{others}: "
            f"{remedy}"
        )


def check_problem(problem: object) -> None:
    """Raise PartitionError unless `problem` is one."""
    if not isinstance(problem, PartitionProblem):
        raise PartitionError(
            f"the problem is a {type(problem).__name__}; give a PartitionProblem, such as "
            "result.problem"
        )


def _check_order(captured: CapturedGraph, plan: PartitionPlan) -> None:
    example = crossing_edges(captured, plan.stage_index)
    backward = [arc for arc in example if arc[0] > arc[1]]
    if not backward:
        return

    def describe(arc: tuple[int, int]) -> str:
        source, target = example[arc]
        here, there = (str(plan.stages[stage]) for stage in arc)
        return f"{source!r} on {here!r} -> {target!r} on {there!r}"

    quotient = nx.DiGraph(list(example))
    if not nx.is_directed_acyclic_graph(quotient):
        cycle = [(arc[0], arc[1]) for arc in nx.find_cycle(quotient)]
        raise PartitionError(
            f"the stages of the plan form a cycle: {'; '.join(describe(arc) for arc in cycle)}; "
            "put the operators of one of these edges on one device"
        )
    remedy = "put the second operator in a later chunk, or order the devices differently"
    if not plan.chunks:
        order = nx.lexicographical_topological_sort(quotient)
        remedy = f"an order that works is {', '.join(plan.stages[stage].device for stage in order)}"
    raise PartitionError(
        f"the plan's stages are out of order: {describe(backward[0])}, which is an earlier "
        f"stage; {remedy}"
    )
