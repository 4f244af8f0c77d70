"""The best plans for a model that serves, each with a bound."""

from __future__ import annotations

from collections.abc import Collection

from solver.evaluation.result import SolveResult, SolveStatus
from solver.model.job import Job
from solver.model.limits import SolveLimits
from solver.offload.contexts import OffloadResult
from solver.offload.instance import OffloadInstance
from solver.offload.plan import plan_offload
from solver.serving.evaluate import ServingResult, evaluate_serving
from solver.serving.first_token import limited_token
from solver.serving.longest_context import fastest_of_context, longest_context
from solver.serving.search import Found, PhaseSearch
from solver.serving.turns import fastest_in_turns


def solve_job(
    job: Job,
    limits: SolveLimits | None = None,
    *,
    solver: str = "auto",
    without: Collection[str] = (),
) -> ServingResult | OffloadResult:
    """Find the plan that serves best by the objective of a job.

    Parameters
    ----------
    limits : SolveLimits, optional
        Of all searches together.
    solver, without
        As of :func:`solver.solve`.

    Returns
    -------
    SolveResult
        Also where no plan exists. With a host the plan is one of units.

    Raises
    ------
    PartitionError
        If the job has a host and the solver has no steps for one, or
        :meth:`solver.offload.instance.OffloadInstance.of` does not support the job.

    Notes
    -----
    *request* and *token* are the objective ``latency`` of the phases merged
    (:meth:`solver.model.job.Job.merged`), *token* also with a limit of the first one
    (:mod:`solver.serving.first_token`); *throughput* is searched for each number of groups
    (:mod:`solver.serving.turns`), and *context* for each number of tokens
    (:mod:`solver.serving.longest_context`). With a host :func:`solver.offload.plan.plan_offload`
    searches, for all objectives.
    """
    if job.host is not None:
        return plan_offload(OffloadInstance.of(job), limits, solver=solver, without=without)
    search = PhaseSearch(job, limits or SolveLimits(), solver, without)
    if job.objective == "context":
        found = fastest_of_context(job, search, longest_context(job, search))
    elif job.objective == "throughput":
        found = fastest_in_turns(job, search)
    elif job.first_token_limit_ns is not None:
        found = limited_token(job, search, job.first_token_limit_ns)
    else:
        found = search.least_latency(job, job.objective_runs)
    return answer(job, search, found)


def answer(job: Job, search: PhaseSearch, found: Found) -> ServingResult:
    """Return the findings of a search for `job` as a result."""
    status = SolveStatus.INFEASIBLE if found.is_refuted else SolveStatus.UNKNOWN
    evaluation = None
    if found.plan is not None:
        evaluation = evaluate_serving(found.job or job, found.plan)
        is_met = evaluation.objective == (found.bound,)
        status = SolveStatus.OPTIMAL if is_met else SolveStatus.FEASIBLE
    return SolveResult(
        solver=search.solver,
        status=status,
        plan=found.plan,
        evaluation=evaluation,
        objective_bounds=None if found.bound is None else (found.bound,),
        wall_time_s=search.clock.elapsed_s,
        reason=found.reason if found.plan is None else "",
        log=tuple(search.log),
    )
