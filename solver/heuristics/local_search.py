"""Local search from a plan: annealing on clusters of units, then on the units themselves.

Single units do not separate from the readers of a large value: on NASNet one crossing costs 8 %
of a stage. Merged with its readers the value moves along for nothing. So every V-cycle merges
units that share a position, anneals the clusters, and refines the result on the units, as in
multilevel partitioners (Karypis and Kumar, SIAM J. Sci. Comput. 20, 1998; iterated from an
incumbent as in Walshaw, Ann. Oper. Res. 131, 2004; for acyclic partitions Herrmann et al., SIAM
J. Sci. Comput. 41, 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solver.dp.contiguous.orders import renumbered, topological_orders
from solver.dp.contiguous.solver import best_cut, transition_count
from solver.evaluation.evaluate import evaluate
from solver.heuristics.annealing.v_cycles import VCycles, usual_moves
from solver.heuristics.step_search import improve_step
from solver.model.clock import UNLIMITED, Clock
from solver.model.cuts import positions_of_blocks
from solver.model.devices import Device
from solver.model.plan import PartitionPlan
from solver.model.problem_fields import NO_BLOCK
from solver.presolve.instance import Instance
from solver.presolve.unit_cuts import unit_blocks

_FEW_UNITS = 16
"""Up to here an exact solver needs no better start than its baselines."""
_MOST_ORDERS = 8
_ORDER_CUTS = 192
_ORDER_WORK = 60_000_000
"""Work, in array entries, of all cuts of several orders."""
_STRETCHES = (1000, 1100, 1250, 1500, 2000, 4000)
"""Capacities for a start that the search repairs, per mille of the true ones."""

_MOVES_PER_UNIT = 100
"""Moves of a search before an exact method, which saves more time on a better plan."""


def improve(
    units: Instance,
    plan: PartitionPlan,
    *,
    seed: int = 0,
    max_iterations: int | None = None,
    target: int = 0,
    clock: Clock = UNLIMITED,
) -> PartitionPlan:
    """Return a plan that is at least as good as `plan`.

    Minimises the problem's first objective other than ``devices``; if ``devices`` comes before it,
    no further device is used. Later objectives decide only between start and end.

    `plan` is in order, with colocation, pins and cuts kept; memory may exceed the capacities, which
    the search then tries to repair. Units stay on the stages of their block. A plan of several
    chunks is returned as it is, and so is one with relayed values and one with pinned stages, whose
    numbers change when a stage becomes empty. For the objective ``step`` all of them are improved
    by :mod:`solver.heuristics.step_search`, if they are feasible.

    At most `max_iterations` moves are tried; by default a number that grows with the graph. The
    search stops when the objective reaches `target`, such as a proven bound. With time enough for
    all moves the result depends on the other arguments alone.
    """
    problem = units.problem
    name = next((name for name in problem.objective if name != "devices"), None)
    if name == "step":
        return improve_step(units, plan, target=target, clock=clock)
    if plan.chunks or name is None or len(units) < 2 or not units.moves_freely:
        return plan
    devices = _devices(units, plan)
    if len(devices) < 2:
        return plan
    if units.problem.cuts:
        units = _within_blocks(units, plan, devices)
    search = VCycles(units, devices, name, seed, target, clock)
    budget = usual_moves(units) if max_iterations is None else max_iterations
    position = {device.name: number for number, device in enumerate(devices)}
    found = search.run([position[name] for name in units.lowered(plan.assignment)], budget)
    if found is None:
        return plan
    return better(units, plan, plan_at(units, devices, found))


def better_plan(
    units: Instance, starts: Sequence[PartitionPlan], clock: Clock = UNLIMITED, *, seed: int = 0
) -> PartitionPlan | None:
    """Return the result of :func:`first_incumbents` for a number of moves that suffices."""
    moves = _MOVES_PER_UNIT * len(units)
    return first_incumbents(units, starts, seed=seed, max_iterations=moves, clock=clock)


def first_incumbents(
    units: Instance,
    starts: Sequence[PartitionPlan] = (),
    *,
    seed: int = 0,
    max_iterations: int | None = None,
    target: int = 0,
    clock: Clock = UNLIMITED,
) -> PartitionPlan | None:
    """Return a good feasible plan in a time that grows with the graph, or None.

    Cuts several topological orders and improves the best of these cuts and of `starts`, known plans
    such as those of the baselines, as :func:`improve` does. With few units only `starts` are
    considered, if there are any.
    """
    best: PartitionPlan | None = None
    for plan in starts:
        best = plan if best is None else better(units, best, plan)
    if best is not None and len(units) <= _FEW_UNITS:
        return best if evaluate(units.problem, best).feasible else None
    if units.pins_contradict:
        return None
    work = transition_count(units) * _ORDER_CUTS**2 // 2 + 2000 * len(units)
    for order in topological_orders(units, max(1, min(_MOST_ORDERS, _ORDER_WORK // work)), seed):
        if best is not None:
            if clock.is_over:
                break
            found = evaluate(units.problem, best)
            if found.feasible and found.objective[0] <= target:
                return best
        cut = best_cut(renumbered(units, order), most_cuts=_ORDER_CUTS, clock=clock)
        if cut is not None:
            best = cut if best is None else better(units, best, cut)
    for stretch in _STRETCHES:
        if best is None:
            best = best_cut(units, most_cuts=_ORDER_CUTS, stretch_permille=stretch)
    if best is None:
        return None
    best = improve(
        units, best, seed=seed, max_iterations=max_iterations, target=target, clock=clock
    )
    return best if evaluate(units.problem, best).feasible else None


def better(units: Instance, plan: PartitionPlan, other: PartitionPlan) -> PartitionPlan:
    """Return the better one of two plans by the evaluator; the first one of equals."""
    before, after = (evaluate(units.problem, each) for each in (plan, other))
    if after.feasible and (not before.feasible or after.objective < before.objective):
        return other
    return plan


def plan_at(units: Instance, devices: Sequence[Device], positions: Sequence[int]) -> PartitionPlan:
    """Return the plan that puts every unit on the device at its position."""
    used = set(positions)
    return PartitionPlan(
        units.lift([devices[position].name for position in positions]),
        tuple(device.name for position, device in enumerate(devices) if position in used),
    )


def _devices(units: Instance, plan: PartitionPlan) -> list[Device]:
    """Return the devices that the search may use, by position: those of the plan first."""
    problem = units.problem
    devices = [problem.device_of[name] for name in plan.device_order]
    if problem.objective[0] == "devices":
        return devices
    unused = [device for device in problem.devices if device not in devices]
    return devices + unused[: max(0, problem.most_devices - len(devices))]


def _within_blocks(units: Instance, plan: PartitionPlan, devices: Sequence[Device]) -> Instance:
    """Return `units` with each allowed only the stages of its block, so that cuts stay kept."""
    names = [device.name for device in devices]
    ranges = positions_of_blocks(units.problem, plan)
    # Devices that the plan leaves unused come last, for the last block.
    stops = [*(entry.stop for entry in ranges[:-1]), len(names)]
    own = [frozenset(names[r.start : stop]) for r, stop in zip(ranges, stops, strict=True)]
    allowed = list(units.allowed_devices)
    for unit, block in enumerate(unit_blocks(units)):
        if block != NO_BLOCK:
            before = allowed[unit]
            allowed[unit] = own[block] if before is None else own[block] & before
    return replace(units, allowed_devices=tuple(allowed))
