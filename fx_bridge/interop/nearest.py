"""The nearest plan that the words of a program can say, and what it costs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from fx_bridge.interop.stage_layers import LayeredModel, StageLayers, is_host
from solver import PartitionError, PartitionPlan, PartitionProblem, evaluate
from solver.model.quantities import format_value


@contextlib.contextmanager
def told_nearest(
    model: LayeredModel,
    plan: PartitionPlan,
    write: Callable[[Sequence[StageLayers]], object],
    problem: PartitionProblem | None,
    *,
    host: str | None = None,
) -> Iterator[None]:
    """Add to an error the nearest plan that can be said, if there is one, with its cost.

    Parameters
    ----------
    write : callable
        Says stages in the words of the program, or refuses them by a PartitionError.
    problem : PartitionProblem, optional
        Which the plan is a plan of. Without it, or if something runs again, no cost is told.
    host : str, optional
        Where the program has the embedding.
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
        cost = "fxpartition score tells what it costs, and plan --for finds the best"
        if problem is not None and not plan.recomputed:
            cost = _cost(problem, model.plan_of(stages), plan)
        raise PartitionError(
            f"{error}; the nearest is {layers} layers on {devices}; {cost}"
        ) from None


def _cost(problem: PartitionProblem, nearest: PartitionPlan, plan: PartitionPlan) -> str:
    """Return the first objective of a plan, beside that of the one that has no words."""
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
    told = told_cost(format_value(name, value), value, beside)
    return f"its {name.replace('_', ' ')} is {told}"


def told_cost(text: str, value: Fraction | int, beside: Fraction | int | None) -> str:
    """Return a value as `text`, and how much more or less than another it is, if there is one."""
    if not beside:
        return text
    part = float(value / beside) - 1
    if not part:
        return f"{text}, as much"
    return f"{text}, {abs(part) * 100:.2f} % {'more' if part > 0 else 'less'}"
