"""Steps for problems in which operators may run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from solver.bounds.pipeline_step import load_of_step_ns, step_of_load_ns
from solver.bounds.recomputed.chains import RecomputedChains, least_chains
from solver.bounds.recomputed.stages import RecomputedStages
from solver.dp.contiguous.farthest_cuts import farthest_cuts
from solver.dp.ideal_program import can_win
from solver.evaluation.result import SolveStatus
from solver.model.clock import Clock
from solver.model.problem import PartitionProblem
from solver.model.recomputation import required
from solver.presolve.device_kinds import usable_devices
from solver.presolve.instance import condense
from solver.search.findings import BoundFound, Finding, Infeasible, PlanFound
from solver.search.state import SearchState, kept
from solver.stages.recompute_chooser import RecomputeChooser

_FEW_ROWS: Final = 200_000
_MOST_ROWS: Final = 1_000_000
"""Pairs of operators, by position, of which a model is made in a moment, and in seconds."""


def recomputed_cuts(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer cuts of the execution order in whose stages operators run again."""
    yield from _cuts(state.problem, clock)


def cuts_with_everything_again(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer cuts in whose stages all operators run again that may, and are needed."""
    yield from _cuts(_with_everything_again(state.problem), clock)


def _cuts(problem: PartitionProblem, clock: Clock) -> Iterator[Finding]:
    if problem.is_hand_made:
        return
    name = "step" if problem.objective[0] == "step" else "bottleneck"
    problem = problem.replace(objective=name, chunks_per_device=1)
    plan = farthest_cuts(condense(problem), chooser=RecomputeChooser(problem), clock=clock)
    if plan is not None:
        yield PlanFound(plan)


def _with_everything_again(problem: PartitionProblem) -> PartitionProblem:
    operators = [
        replace(op, backward=replace(op.backward, must_recompute=op.backward.recomputable))
        for op in problem.operators
    ]
    return problem.replace(operators=tuple(operators))


def without_limits(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Solve the problem with all the memory it takes; let operators of the plan run again.

    Then nothing has to run again, which only adds time: its optimum is a bound.
    """
    limits = replace(state.limits, on_progress=None)
    answer = state.sub_search(_without_limits(state), limits, clock)
    if answer.plan is not None:
        yield PlanFound(RecomputeChooser(state.problem).completed(answer.plan))
    if answer.objective_bounds:
        yield BoundFound(answer.objective_bounds[0])
    elif answer.status is SolveStatus.INFEASIBLE:
        yield Infeasible(answer.reason)


@kept
def is_short_without_limits(state: SearchState) -> bool:
    """Return True if the search without limits of memory will likely end in about a second."""
    return state.problem.objective == ("bottleneck",) and can_win(_without_limits(state))


def needs_nothing_again(state: SearchState) -> bool:
    """Return True if the best plan so far fits with nothing run again."""
    return state.plan is not None and not state.plan.recomputed


def _without_limits(state: SearchState) -> PartitionProblem:
    devices = [replace(device, memory_bytes=None) for device in state.problem.devices]
    return state.problem.replace(devices=devices, recompute="none", objective=(state.objective,))


def recomputed_stages(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Bound loads, and their sum, by ideals of some units (:mod:`solver.bounds.recomputed`)."""
    problem, limit_ns, is_step = state.problem, state.best, state.objective == "step"
    if is_step and limit_ns is not None:
        limit_ns = load_of_step_ns(problem, limit_ns)
    chooser = RecomputeChooser(problem)
    kinds = state.presolved.kinds
    stages = RecomputedStages.of(
        state.units, kinds, chooser.choices, limit_ns=limit_ns, clock=clock
    )
    if is_step:
        load_ns, _ = RecomputedChains(stages, is_step=False, clock=clock).least(limit_ns)
        yield _bounded(None if load_ns is None else step_of_load_ns(problem, load_ns))
    for bound_ns, plan in least_chains(stages, lambda: state.best, is_step=is_step, clock=clock):
        yield _bounded(bound_ns)
        if plan is not None:
            yield PlanFound(chooser.completed(plan))


def _bounded(bound_ns: int | None) -> Finding:
    if bound_ns is None:
        return Infeasible("proven: whatever runs again, no plan fits")
    return BoundFound(bound_ns)


def has_recomputed_stages(state: SearchState) -> bool:
    """Return True if memory is limited, and the objective is one of loads."""
    name = state.objective
    is_timed = name == "bottleneck" or (name == "step" and not state.problem.interconnect.overlap)
    return is_timed and state.has_gap(0) and RecomputedStages.applies(state.problem)


def has_wide_gap(state: SearchState) -> bool:
    """Return True if the plans so far may be a hundredth above the best."""
    return state.has_gap(10)


def may_run_everything_again(state: SearchState) -> bool:
    """Return True if average loads with everything run again are below the best bottleneck.

    Of a graph on one device: borders spare little, such as a value saved only elsewhere.
    """
    if state.objective != "bottleneck" or state.best is None:
        return True
    problem, units = _with_everything_again(state.problem), state.units
    names = required(problem, {op.name: 0 for op in problem.operators}, ())
    again = [index for index, op in enumerate(problem.operators) if op.name in names]
    classes = {device.device_class for device in problem.devices}
    again_ns = min(int(problem.arrays.pass_latency_ns(own)[0][again].sum()) for own in classes)
    return int(units.fastest_ns.sum()) + again_ns < state.best * usable_devices(units)


def has_few_rows(state: SearchState) -> bool:
    """Return True if a model of recomputation is small."""
    return _rows(state) <= _FEW_ROWS


def has_model(state: SearchState) -> bool:
    """Return True if a model of recomputation is made in time."""
    return _rows(state) <= _MOST_ROWS


def _rows(state: SearchState) -> int:
    positions = state.presolved.slots * state.presolved.chunks
    return len(state.problem.operators) ** 2 * positions
