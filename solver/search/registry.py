"""The registered solvers, by name, each loaded when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from solver.evaluation.result import Solver, SolveResult
from solver.model.errors import PartitionError
from solver.model.limits import SolveLimits
from solver.model.problem import PartitionProblem


def _auto(problem: PartitionProblem, limits: SolveLimits) -> SolveResult:
    from solver.search.auto import solve_auto

    return solve_auto(problem, limits)


def _greedy(problem: PartitionProblem, limits: SolveLimits) -> SolveResult:
    from solver.heuristics.greedy import solve_greedy

    return solve_greedy(problem, limits)


def _chain(problem: PartitionProblem, limits: SolveLimits) -> SolveResult:
    from solver.dp.contiguous.solver import solve_chain

    return solve_chain(problem, limits)


def _ideal_dp(problem: PartitionProblem, limits: SolveLimits) -> SolveResult:
    from solver.dp.ideal_program import solve_ideal_dp
    from solver.heuristics.local_search import better_plan

    return solve_ideal_dp(problem, limits, better_plan)


def _cp_sat(problem: PartitionProblem, limits: SolveLimits) -> SolveResult:
    # OR-Tools takes a second to load; nobody pays for it who solves nothing.
    from solver.search.exact import solve_cp_sat

    return solve_cp_sat(problem, limits)


def _coarse(problem: PartitionProblem, limits: SolveLimits) -> SolveResult:
    from solver.heuristics.multilevel import solve_large

    return solve_large(problem, limits)


SOLVERS: Final[Mapping[str, Solver]] = MappingProxyType(
    {
        "auto": _auto,
        "greedy": _greedy,
        "chain": _chain,
        "ideal-dp": _ideal_dp,
        "coarse": _coarse,
        "cp-sat": _cp_sat,
    }
)
"""By name, all that ``solve`` can call."""


def check_solver(name: str) -> None:
    """Raise PartitionError unless a solver of that name is registered."""
    if not isinstance(name, str) or name not in SOLVERS:
        raise PartitionError(f"solver {name!r} is unknown; write one of {', '.join(SOLVERS)}")


def check_limits(limits: SolveLimits | None) -> None:
    """Raise PartitionError unless `limits` are limits of a search, or None."""
    if limits is not None and not isinstance(limits, SolveLimits):
        raise PartitionError(f"limits is {limits!r}; write SolveLimits(time_limit_s=60)")


def solve(
    problem: PartitionProblem, limits: SolveLimits | None = None, *, solver: str = "auto"
) -> SolveResult:
    """Solve `problem` with a registered solver.

    Parameters
    ----------
    problem : PartitionProblem
    limits : SolveLimits, optional
    solver : str
        A key of `SOLVERS`. ``"auto"`` picks an exact method; ``result.solver`` says which one
        answered, and is ``"auto"`` where sums of bytes say that no plan exists.

    Raises
    ------
    PartitionError
        If no solver has that name, or `limits` are none.

    Examples
    --------
    >>> from solver.model.problem import Device, Operator
    >>> problem = PartitionProblem(
    ...     operators=(Operator("a", 3), Operator("b", 5, reads=("a",))),
    ...     devices=(Device("gpu0"), Device("gpu1")),
    ... )
    >>> solve(problem).objective
    5
    """
    check_solver(solver)
    check_limits(limits)
    return SOLVERS[solver](problem, SolveLimits() if limits is None else limits)
