"""Plans of a step with caches, as plans of the underlying model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.serving.phases import same_operators
from fx_bridge.split.colocation import colocation_groups
from solver import PartitionPlan


def plan_of_model(
    captured: CapturedGraph, step: CapturedGraph, plan: PartitionPlan
) -> PartitionPlan:
    """Return the plan of a model that keeps the modules where a plan of its step has them.

    `captured` is without caches. Chunks and modes come from the stages of the step's plan. An
    operator that occurs in both graphs, in the same module call, has the same stage in both. Any
    other operator is in the stage of the operator before it, within the innermost module that has a
    known one. Operators that read from a later stage, or are colocated with one of it, move to that
    stage.
    """
    known = {own: plan.stage_index[name] for own, name in same_operators(step, captured).items()}
    found = _pulled_back(captured, {**_beside_others(captured, known), **known})
    stages = {name: plan.stages[at] for name, at in found.items()}
    used = {stage.device for stage in stages.values()}
    mode_at = {plan.stage_index[name]: mode for name, mode in plan.mode_of.items()}
    return PartitionPlan(
        {name: stage.device for name, stage in stages.items()},
        tuple(device for device in plan.device_order if device in used),
        {name: stage.chunk for name, stage in stages.items()},
        mode_of={name: mode_at[at] for name, at in found.items() if at in mode_at},
    )


def _beside_others(captured: CapturedGraph, known: Mapping[str, int]) -> dict[str, int]:
    """Return the stage of every operator from that of a known one in the same module.

    The module is the innermost one with a known operator. Of its known operators, the last before
    the operator counts, or else the first after it.
    """
    calls = captured.modules.calls
    found: dict[str, tuple[int, int]] = {}
    for names in (list(calls), list(reversed(calls))):
        last: dict[tuple[object, ...], int] = {}
        for name in names:
            around = [calls[name][:outer] for outer in range(len(calls[name]) + 1)]
            if name in known:
                last.update(dict.fromkeys(around, known[name]))
            inner = max((call for call in around if call in last), key=len, default=None)
            if inner is not None and len(inner) > found.get(name, (-1, 0))[0]:
                found[name] = len(inner), last[inner]
    return {name: stage for name, (_, stage) in found.items()}


def _pulled_back(captured: CapturedGraph, stages: Mapping[str, int]) -> dict[str, int]:
    """Return the least stages, none earlier than given, in which no read is from a later stage."""
    found = dict(stages)
    groups: Iterable[tuple[str, ...]] = [g.operators for g in colocation_groups(captured)]
    before: dict[str, int] = {}
    while before != found:
        before = dict(found)
        for node in captured.operators:
            reads = (found[read.name] for read in node.all_input_nodes if read.name in found)
            found[node.name] = max(found[node.name], *reads, 0)
        for names in groups:
            found.update(dict.fromkeys(names, max(found[name] for name in names)))
    return found
