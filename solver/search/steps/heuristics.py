"""Steps that find plans and improve them; they claim nothing about other plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from solver.dp.contiguous.solver import contiguous_plan
from solver.dp.ideal_program import IdealAnswer, SolveIdeals, solve_ideals
from solver.heuristics.cheap_borders import plan_at_cheap_borders
from solver.heuristics.greedy import greedy_plan
from solver.heuristics.local_search import (
    better_plan,
    first_incumbents,
    improve_slowly,
    searched_objective,
)
from solver.heuristics.order_search import search_orders
from solver.heuristics.rotations import best_rotation, can_rotate
from solver.model.clock import Clock
from solver.model.cuts import is_hand_made
from solver.model.problem import PartitionProblem
from solver.presolve.instance import Instance
from solver.search.findings import Finding, NothingFound, PlanFound
from solver.search.state import SearchState

_MOVES_PER_UNIT: Final = 100
"""Moves of local search on smaller graphs, which a model often solves at once."""
_MOST_SUB_SOLVES: Final = 40
"""Of a deterministic run."""
_SLOW_SEARCHES: Final = 2
"""Without a clock of the wall."""
_SEEDS: Final = 1000
"""From one slow search to the next."""


def greedy(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer the plan of torch's accelerator_partitioner (:mod:`solver.heuristics.greedy`)."""
    yield PlanFound(greedy_plan(state.problem))


def contiguous(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer the best cut of the execution order (:mod:`solver.dp.contiguous.solver`)."""
    plan = contiguous_plan(state.problem, clock)
    if plan is not None:
        yield PlanFound(plan)
    elif state.units.pins_contradict:
        yield NothingFound("operators that must share a device are pinned apart")
    else:
        yield NothingFound("no contiguous cut of the execution order fits")


def without_host(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer a plan that leaves out the hosts, which the best plan often does.

    Transfers to a host cost it nothing. So fewer units can be merged than for the other devices
    alone, and every order of devices with it is harder to search.
    """
    problem = state.problem
    others = tuple(device for device in problem.devices if not device.is_host)
    gone = {device.name for device in problem.devices if device.is_host}
    links = problem.interconnect.links.items()
    interconnect = replace(
        problem.interconnect, links={k: v for k, v in links if gone.isdisjoint(k)}
    )
    smaller = problem.replace(devices=others, interconnect=interconnect)
    # A bound of these plans is none of all plans, so it is not reported.
    plan = state.sub_search(smaller, replace(state.limits, on_progress=None), clock).plan
    if plan is not None:
        yield PlanFound(plan)


def can_do_without_host(state: SearchState) -> bool:
    """Whether some devices are hosts, and plans without them are of use."""
    problem = state.problem
    hosts = sum(device.is_host for device in problem.devices)
    return (
        state.presolved.units.transfers.through_host
        and 0 < hosts < len(problem.devices)
        and problem.objective[0] == "bottleneck"
        and state.presolved.is_large
        and all(allowed is None for allowed in state.presolved.units.allowed_devices)
        # Fewer devices may be too few stages.
        and not is_hand_made(problem)
    )


def cuts_of_orders(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer the best cut of orders that make shared values at different places.

    Where a maker pays for each device that reads, much depends on them.
    """
    seed, target = state.seed, state.bound
    plan = search_orders(state.presolved.units, seed=seed, target=target, clock=clock)
    if plan is not None:
        yield PlanFound(plan)


def has_shared_values(state: SearchState) -> bool:
    """Whether makers pay for each device that reads, and orders can be cut."""
    problem = state.problem
    return (
        problem.objective[0] == "bottleneck"
        and pays_each_reader(state)
        and problem.chunks_per_device == 1
        and state.presolved.is_large
        and not is_hand_made(problem)
    )


def pays_each_reader(state: SearchState) -> bool:
    """Whether makers pay for each device that reads.

    Host-staged cells of convolutions are cut as well along orders.
    """
    return not state.presolved.units.transfers.sends_once


def cheap_borders(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer the best plan of those that end stages where little crosses."""
    plan = plan_at_cheap_borders(state.presolved.units, clock, ideal_program(state))
    if plan is not None:
        yield PlanFound(plan)


def ideal_program(state: SearchState) -> SolveIdeals:
    """Return the program over ideals as smaller problems are solved by it."""
    improve = partial(better_plan, seed=state.limits.seed)

    def solve(problem: PartitionProblem, clock: Clock) -> IdealAnswer:
        return solve_ideals(problem, clock, improve)

    return solve


def local_search(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer what moves of units and clusters make of all plans, and of cuts of several orders."""
    units = state.presolved.units
    plan = first_incumbents(
        units,
        state.plans,
        seed=state.seed,
        max_iterations=None if state.presolved.is_large else _MOVES_PER_UNIT * len(units),
        target=state.bound,
        clock=clock,
    )
    if plan is not None:
        yield PlanFound(plan)


def rotations(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer the best cut of the order turned around some place, for several chunks."""
    plan = best_rotation(state.presolved.units, target=state.bound, clock=clock)
    if plan is not None:
        yield PlanFound(plan)


def has_rotations(state: SearchState) -> bool:
    """Whether a device may have a part of either end of the order."""
    return can_rotate(state.presolved.units)


def is_searched_by_moves(state: SearchState) -> bool:
    """Whether the objective under way is the one that moves lower."""
    return state.objective == searched_objective(state.problem)


def all_borders(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer what sub-solves of all stage boundaries at once make of the incumbent."""
    assert state.plan is not None
    from solver.heuristics.neighbourhoods.border_search import improve_borders

    plan = improve_borders(
        state.presolved.units,
        state.plan,
        clock=clock,
        workers=state.workers,
        seed=state.seed,
        target=state.bound,
    )
    yield PlanFound(plan)


def stage_boundaries(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer what sub-solves around single stage boundaries make of the incumbent."""
    yield improved_boundaries(state, state.presolved.units, clock, state.seed)


def improved_boundaries(state: SearchState, units: Instance, clock: Clock, seed: int) -> PlanFound:
    """Return what sub-solves around stage boundaries, on some units, make of the incumbent."""
    assert state.plan is not None
    from solver.heuristics.neighbourhoods.stage_boundaries import improve_by_neighbourhoods

    plan = improve_by_neighbourhoods(
        units,
        state.plan,
        clock=clock,
        max_solves=_MOST_SUB_SOLVES if clock.is_deterministic else None,
        workers=state.workers,
        seed=seed,
        target=state.bound,
    )
    return PlanFound(plan)


def slow_annealing(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Offer what slow annealing makes of the incumbent, in its own order of devices.

    Wide graphs on many devices have plans that no model finds in minutes, as relaxations say
    little of them, but that moves of single units lead to.
    """
    assert state.plan is not None
    for plan in improve_slowly(
        state.presolved.units,
        state.plan,
        searches=_SLOW_SEARCHES if clock.is_deterministic else None,
        seed=state.seed + _SEEDS,
        target=state.bound,
        clock=clock,
    ):
        yield PlanFound(plan)
