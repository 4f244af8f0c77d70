"""The one way into a search."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from solver.model.clock import Clock
from solver.model.errors import PartitionError
from solver.model.limits import SolveLimits
from solver.model.problem import PartitionProblem, check_problem
from solver.model.text import shown

if TYPE_CHECKING:
    from solver.evaluation.result import SolveResult

SOLVERS: Final = ("auto", "greedy", "chain", "ideal-dp", "coarse", "cp-sat")
"""The names of all solvers, each of which is a schedule of steps."""


def check_solver(name: str) -> None:
    """Raise PartitionError unless there is a solver of that name."""
    if isinstance(name, SolveLimits):
        raise PartitionError(f"solver is {shown(name)}; write limits={shown(name)}")
    if not isinstance(name, str) or name not in SOLVERS:
        raise PartitionError(f"solver {shown(name)} is unknown; write one of {', '.join(SOLVERS)}")


def check_limits(limits: SolveLimits | None) -> None:
    """Raise PartitionError unless `limits` are limits of a search, or None."""
    if isinstance(limits, str) and limits in SOLVERS:
        raise PartitionError(f"limits is {limits!r}, which is a solver; write solver={limits!r}")
    if limits is not None and not isinstance(limits, SolveLimits):
        raise PartitionError(f"limits is {shown(limits)}; write SolveLimits(time_limit_s=60)")


def step_names() -> tuple[str, ...]:
    """Return the names of the steps of all solvers, as ``without`` takes them."""
    from solver.offload.plan import STEPS
    from solver.search.schedule import SCHEDULES

    names = (step.name for steps in SCHEDULES.values() for step in steps)
    return tuple(dict.fromkeys([*names, *STEPS]))


def check_without(names: Collection[str]) -> None:
    """Raise PartitionError unless all `names` are names of steps."""
    if isinstance(names, str) or not isinstance(names, Collection):
        example = repr(names) if isinstance(names, str) else "'greedy'"
        raise PartitionError(
            f"without is {shown(names)}; write a collection of names: ({example},)"
        )
    for name in names:
        if name not in step_names():
            known = ", ".join(step_names())
            raise PartitionError(f"step {name!r} is unknown; write one of {known}")


def solve(
    problem: PartitionProblem,
    limits: SolveLimits | None = None,
    *,
    solver: str = "auto",
    without: Collection[str] = (),
) -> SolveResult:
    """Find the best plan of a problem, and prove that none is better.

    The steps of a schedule take turns (:mod:`solver.search.schedule`): presolve restates the
    problem, heuristics find plans, bounds say how good a plan can be, and branch and bound over
    device orders closes the gap between them. The search ends as soon as the two meet.

    Parameters
    ----------
    problem : PartitionProblem
        The problem.
    limits : SolveLimits, optional
        How long to search, on how many threads; a minute without it.
    solver : str
        One of `SOLVERS`. With ``"auto"``, ``result.solver`` says whose steps decided, and is
        ``"auto"`` where sums of bytes or pins say that no plan exists.
    without : collection of str
        Names of steps to leave out (:func:`step_names`).

    Returns
    -------
    SolveResult
        ``log`` records the time and the gain of each step.

    Raises
    ------
    PartitionError
        If no solver or step has that name, or `limits` are none.

    Examples
    --------
    >>> from solver import Device, Operator
    >>> problem = PartitionProblem(
    ...     operators=(Operator("a", 3), Operator("b", 5, reads=("a",))),
    ...     devices=(Device("gpu0"), Device("gpu1")),
    ... )
    >>> solve(problem).objective
    5
    """
    check_problem(problem)
    check_solver(solver)
    check_limits(limits)
    limits = SolveLimits() if limits is None else limits
    clock = Clock.of(limits)
    check_without(without)
    # The schedule takes a moment to load, which a program that solves nothing is spared.
    from solver.search.rounds import search

    return search(problem, limits, clock, solver, without)
