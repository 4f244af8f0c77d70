"""The exact solver: runs CP-SAT models and answers with a plan, a bound and a status."""

from __future__ import annotations

from collections.abc import Sequence

from solver.bounds.objectives import ObjectiveBounds
from solver.evaluation.evaluate import evaluate
from solver.evaluation.result import SolveResult, SolveStatus
from solver.model.clock import Clock
from solver.model.limits import SolveLimits
from solver.model.problem import PartitionProblem
from solver.presolve.dominance import simplify
from solver.presolve.presolved import RestatedProblem
from solver.presolve.units import condense
from solver.search.branch_search import NAME, BranchSearch
from solver.search.branches import Branches
from solver.search.first_plans import FirstPlans, plans_of_others
from solver.search.incumbent import Incumbent
from solver.search.limit_refutation import LimitRefutation
from solver.search.order_neighbours import OrderGuesses
from solver.search.order_refutation import refute_orders
from solver.search.rounds import search_in_rounds
from solver.search.slow_annealing import SlowMoves


def solve_cp_sat(
    problem: PartitionProblem, limits: SolveLimits, *, known: SolveResult | None = None
) -> SolveResult:
    """Solve `problem` exactly, or return the best plan and bound at the time limit.

    The best baseline (chain, greedy) is the first incumbent and a full hint; objectives are
    minimised one after the other, each with the earlier ones held at their values.

    Parameters
    ----------
    problem : PartitionProblem
    limits : SolveLimits
    known : SolveResult, optional
        Another solver's answer, whose plan and bounds are taken over.

    Returns
    -------
    SolveResult
        Never worse than the baselines. The plan and its objective are the evaluator's.
    """
    return _solve(problem, limits, Clock.of(limits), known)


def _solve(
    problem: PartitionProblem,
    limits: SolveLimits,
    clock: Clock,
    known: SolveResult | None = None,
) -> SolveResult:
    """Solve `problem` until a clock is over, which is charged with what the search has used."""
    simplified = simplify(condense(problem))
    if simplified.units.pins_contradict:
        return _failed(
            SolveStatus.INFEASIBLE,
            (),
            clock,
            "operators on a cycle between colocation groups are pinned to different devices",
        )
    restated = RestatedProblem.of(simplified)
    plans = plans_of_others(problem, clock, known)
    bounds = ObjectiveBounds(restated, known)
    incumbent = Incumbent(restated.identical)
    FirstPlans(restated, bounds, incumbent, limits, clock, plans, _solve).find()
    proven: list[int] = []
    for name in problem.objective:
        earlier = dict(zip(problem.objective, proven, strict=False))
        branches = Branches(restated, incumbent, name, earlier, bounds.least(name))
        search = BranchSearch(restated, bounds.stage_bounds, branches, limits, clock)
        refute_orders(search, bounds, clock)
        guesses = OrderGuesses(restated, branches)
        moves = SlowMoves(restated, branches, limits, clock)
        refutation = LimitRefutation(restated, bounds.stage_bounds, branches, limits, clock)
        search_in_rounds(search, refutation, guesses, moves, restated, clock)
        if incumbent.plan is None and branches.are_closed:
            return _failed(SolveStatus.INFEASIBLE, proven, clock, "proven: no plan fits")
        proven.append(branches.least())
        if incumbent.plan is None:
            reason = "the time limit ran out before a plan was found"
            return _failed(SolveStatus.UNKNOWN, proven, clock, reason)
        if not branches.are_closed:
            break
    assert incumbent.plan is not None
    is_optimal = tuple(proven) == incumbent.values
    return SolveResult(
        solver=NAME,
        status=SolveStatus.OPTIMAL if is_optimal else SolveStatus.FEASIBLE,
        plan=incumbent.plan,
        evaluation=evaluate(problem, incumbent.plan),
        objective_bounds=tuple(proven),
        wall_time_s=clock.elapsed_s,
    )


def _failed(status: SolveStatus, proven: Sequence[int], clock: Clock, reason: str) -> SolveResult:
    """Return the answer of a search without a plan."""
    bounds = tuple(proven) or None
    return SolveResult(NAME, status, None, None, bounds, clock.elapsed_s, reason)
