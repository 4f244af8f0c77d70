"""The nearest plan that a program can express, and its cost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from fx_bridge.interop.layered_model import LayeredModel
from fx_bridge.interop.stage_layers import StageLayers, is_host
from solver import PartitionError, PartitionPlan, PartitionProblem, evaluate
from solver.model.quantities import format_value


@contextlib.contextmanager
def suggesting_nearest(
    model: LayeredModel,
    plan: PartitionPlan,
    write: Callable[[Sequence[StageLayers]], object],
    problem: PartitionProblem | None,
    *,
    host: str | None = None,
) -> Iterator[None]:
    """Add the nearest plan that can be expressed, if there is one, and its cost to an error.

    `write` returns the words of stages, or raises PartitionError; `host` has the embedding. Without
    `problem`, or if the plan recomputes, the error has no cost.
    """
    try:
        yield
    except PartitionError as error:
        stages = model.nearest_stages(plan)
        if host is not None and not is_host(stages[0].device):
            stages = [
                StageLayers(host, 0, True),
                replace(stages[0], has_embedding=False),
                *stages[1:],
            ]
        try:
            write(stages)
        except PartitionError:
            raise error from None
        layers = ",".join(str(stage.count) for stage in stages)
        devices = ",".join(stage.device for stage in stages)
        cost = "fxpartition score prints its cost, and plan --for finds the best"
        if problem is not None and not plan.recomputed:
            cost = _cost(problem, model.plan_of(stages), plan)
        raise PartitionError(
            f"{error}; the nearest is {layers} layers on {devices}; {cost}"
        ) from None


def _cost(problem: PartitionProblem, nearest: PartitionPlan, plan: PartitionPlan) -> str:
    """Return the first objective of the nearest plan, compared with that of the given one."""
    for device in nearest.device_order:
        if device not in problem.device_of:
            return f"the devices have no {device!r}; add it, such as 64GB@cpu"
    found = evaluate(problem, nearest)
    if found.violations:
        return f"it breaks a limit: {found.violations[0]}"
    name = problem.objective[0]
    value = found.value(name)
    given = evaluate(problem, plan)
    beside = None if given.violations else given.value(name)
    changed = with_change(format_value(name, value), value, beside)
    return f"its {name.replace('_', ' ')} is {changed}"


def with_change(text: str, value: Fraction | int, beside: Fraction | int | None) -> str:
    """Return a value as `text`, with its relative change against another value, if there is one."""
    if not beside:
        return text
    part = float(value / beside) - 1
    if not part:
        return f"{text}, as much"
    return f"{text}, {abs(part) * 100:.2f} % {'more' if part > 0 else 'less'}"
