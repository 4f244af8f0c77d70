"""Steps that find plans and improve them; they claim nothing about other plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from solver.dp.contiguous.solver import contiguous_plan
from solver.heuristics.greedy import greedy_plan
from solver.heuristics.local_search import first_incumbents
from solver.heuristics.rotations import best_rotation, can_rotate
from solver.heuristics.trimming import trimmed
from solver.model.clock import Clock
from solver.search.findings import Finding, NothingFound, PlanFound
from solver.search.state import SearchState

_MOVES_PER_UNIT: Final = 100
"""Moves of local search on smaller graphs, which a model often solves at once."""


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
    others = state.presolved.units.transfers.paying
    gone = {device.name for device in problem.devices if device not in others}
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
    """Return True if some devices are hosts, and plans without them are of use."""
    problem = state.problem
    return (
        0 < len(state.presolved.units.transfers.paying) < len(problem.devices)
        and problem.objective[0] == "bottleneck"
        and state.presolved.is_large
        and all(allowed is None for allowed in state.presolved.units.allowed_devices)
        # Fewer devices may be too few stages.
        and not problem.is_hand_made
    )


def local_search(state: SearchState, clock: Clock) -> Iterator[Finding]:
    """Improve all plans, and cuts of several orders, by moves of units and clusters."""
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
    units = state.presolved.units
    plan = best_rotation(units, target=state.bound, clock=clock)
    if plan is not None:
        yield PlanFound(plan)
        yield PlanFound(trimmed(units, plan, clock))


def has_rotations(state: SearchState) -> bool:
    """Return True if a device may have a part of either end of the order."""
    return can_rotate(state.presolved.units)
