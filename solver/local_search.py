"""Local search from a plan: annealing on clusters of units, then on the units themselves.

A value that is large to move makes a wall around its readers that single units do not climb:
on NASNet one crossing costs 8 % of a stage. Merged with its readers it moves along for
nothing. So every round merges units that share a position, anneals the clusters, and refines
the result on the units: the V-cycle of multilevel partitioners (Karypis and Kumar, SIAM J. Sci.
Comput. 20, 1998; iterated from an incumbent as in Walshaw, Ann. Oper. Res. 131, 2004; for
acyclic partitions Herrmann et al., SIAM J. Sci. Comput. 41, 2019).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from solver.chain import best_cut, transition_count
from solver.chaining.orders import renumbered, topological_orders
from solver.cuts import NO_BLOCK, positions_of_blocks, unit_blocks
from solver.evaluate import evaluate
from solver.hardware import Device
from solver.improving.anneal import PEAK_SCALE, Cooling, anneal
from solver.improving.stage_state import StageState
from solver.improving.step_search import improve_step
from solver.plan import PartitionPlan
from solver.problem import ObjectiveName, PartitionProblem
from solver.reduce import UnitGraph
from solver.reducing.clusters import cluster, contract

_WORTHWHILE = 0.7
"""Clusters beyond this share of the units are left out."""
_ONE_ROUND_ABOVE = 5_000
"""Units beyond which a single round uses up all iterations."""
_FEW_UNITS = 16
"""Up to here an exact solver needs no better start than its baselines."""
_MOST_ORDERS = 8
_ORDER_CUTS = 192
_ORDER_WORK = 60_000_000
"""Array entries, or the time of as many, that cuts of several orders may take."""
_STRETCHES = (1000, 1100, 1250, 1500, 2000, 4000)
"""Capacities for a start that the search mends, per mille of the true ones."""
_IDLE_SEARCHES = 2
"""So many slow searches in turn without a gain are the last ones."""
_SEEDS = 10
"""From one slow search to the next; the rounds of each have seeds of their own."""
_GAIN_PERMILLE = 1
"""What counts as one."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to search, and how hot.

    Attributes
    ----------
    iterations_per_unit, most_iterations : int
        Moves tried in all rounds together.
    shares : tuple of float
        Largest clusters of the rounds, as shares of an average stage; 0 is units alone.
    coarse, fine : tuple of float
        First and last temperatures on clusters and on units, see
        :class:`solver.improving.anneal.Cooling`.
    """

    iterations_per_unit: int
    most_iterations: int
    shares: tuple[float, ...]
    coarse: tuple[float, float]
    fine: tuple[float, float]

    def iterations(self, unit_count: int) -> int:
        """Return a budget of moves that grows with the graph."""
        return min(unit_count * self.iterations_per_unit, self.most_iterations)


QUICK: Final = Pace(360, 240_000, (1 / 8, 1 / 16, 1 / 4), (0.03, 0.002), (0.01, 0.0001))
"""One to three seconds, or up to ten if memory counts activations; measured on NASNet."""
SLOW: Final = (
    Pace(1000, 2_000_000, (0.0,), (0.0, 0.0), (0.002, 0.00003)),
    Pace(600, 2_000_000, (1 / 8, 1 / 16, 1 / 4), (0.03, 0.0005), (0.002, 0.00003)),
    Pace(600, 2_000_000, (1 / 8, 1 / 16, 1 / 4), (0.03, 0.002), (0.01, 0.0001)),
)
"""In turn: units alone, long and cold, which is best on random layered graphs; clusters with a cold
end, on series-parallel ones; and as at first, where values are large."""


def searched_objective(problem: PartitionProblem) -> ObjectiveName | None:
    """Return the objective that local search minimises: the first other than ``devices``."""
    return next((name for name in problem.objective if name != "devices"), None)


def improve(
    units: UnitGraph,
    plan: PartitionPlan,
    *,
    seed: int = 0,
    max_iterations: int | None = None,
    pace: Pace = QUICK,
    target: int = 0,
    deadline_s: float | None = None,
) -> PartitionPlan:
    """Return a plan that is at least as good as `plan`.

    Minimises the problem's first objective other than ``devices``; if ``devices`` comes before
    it, no further device is used. Later objectives decide only between start and end.

    Parameters
    ----------
    units : UnitGraph
    plan : PartitionPlan
        In order, with colocation, pins and cuts kept; memory may exceed the capacities, which the
        search then tries to mend. Units stay on the stages that are their block's in `plan`. A
        plan of several chunks is returned as it is, and so is one of relayed values and one with
        pinned stages, whose numbers change when a stage becomes empty. For the objective ``step``
        all of them are improved by :mod:`solver.improving.step_search`, if they are feasible.
    seed : int
    max_iterations : int, optional
        Moves tried in all; by default those of `pace`.
    pace : Pace
    target : int
        Stop when the objective reaches this, such as a proven bound.
    deadline_s : float, optional
        On ``time.perf_counter``. With time enough for all moves the result depends on nothing but
        the arguments.
    """
    problem = units.problem
    name = searched_objective(problem)
    if name == "step":
        return improve_step(units, plan, target=target, deadline_s=deadline_s)
    fixed = problem.stage_pins or problem.interconnect.charging == "relayed"
    if plan.chunks or name is None or len(units) < 2 or fixed:
        return plan
    devices = _devices(units, plan)
    if len(devices) < 2:
        return plan
    if units.problem.cuts:
        units = _within_blocks(units, plan, devices)
    search = _Search(units, devices, name, seed, pace, target, deadline_s)
    budget = pace.iterations(len(units)) if max_iterations is None else max_iterations
    found = search.run([devices.index(d) for d in _devices_of_units(units, plan)], budget)
    if found is None:
        return plan
    return better(units, plan, plan_at(units, devices, found))


def improve_slowly(
    units: UnitGraph,
    plan: PartitionPlan,
    *,
    searches: int | None = None,
    seed: int = 0,
    target: int = 0,
    deadline_s: float | None = None,
) -> Iterator[PartitionPlan]:
    """Yield better and better plans, for as long as somebody asks and searches find some.

    Each search starts from the best plan so far, with moves and clusters of its own.

    Parameters
    ----------
    units : UnitGraph
    plan : PartitionPlan
        Feasible.
    searches : int, optional
        The most searches.
    seed, target, deadline_s
        As for :func:`improve`.
    """
    name = searched_objective(units.problem)
    if name is None:
        return
    value = evaluate(units.problem, plan).value(name)
    idle = 0
    for number in itertools.count() if searches is None else range(searches):
        if value <= target or idle == _IDLE_SEARCHES:
            return
        if deadline_s is not None and time.perf_counter() >= deadline_s:
            return
        found = improve(
            units,
            plan,
            seed=seed + _SEEDS * number,
            pace=SLOW[number % len(SLOW)],
            target=target,
            deadline_s=deadline_s,
        )
        before, value = value, evaluate(units.problem, found).value(name)
        idle = 0 if value < before * (1000 - _GAIN_PERMILLE) // 1000 else idle + 1
        if found is not plan:
            plan = found
            yield plan


def first_incumbents(
    units: UnitGraph,
    starts: Sequence[PartitionPlan] = (),
    *,
    seed: int = 0,
    max_iterations: int | None = None,
    target: int = 0,
    deadline_s: float | None = None,
) -> PartitionPlan | None:
    """Return a good feasible plan in a time that grows with the graph, or None.

    Cuts several topological orders and improves the best of these cuts and of `starts`.

    Parameters
    ----------
    units : UnitGraph
    starts : sequence of PartitionPlan
        Known plans, such as those of the baselines.
    seed, max_iterations, target, deadline_s
        As for :func:`improve`. With few units only `starts` are looked at, if there are any.
    """
    best: PartitionPlan | None = None
    for plan in starts:
        best = plan if best is None else better(units, best, plan)
    if best is not None and len(units) <= _FEW_UNITS:
        return best if evaluate(units.problem, best).feasible else None
    if any(allowed is not None and not allowed for allowed in units.allowed_devices):
        return None
    work = transition_count(units) * _ORDER_CUTS**2 // 2 + 2000 * len(units)
    for order in topological_orders(units, max(1, min(_MOST_ORDERS, _ORDER_WORK // work)), seed):
        if best is not None:
            if deadline_s is not None and time.perf_counter() > deadline_s:
                break
            found = evaluate(units.problem, best)
            if found.feasible and found.objective[0] <= target:
                return best
        cut = best_cut(renumbered(units, order), most_cuts=_ORDER_CUTS, deadline_s=deadline_s)
        if cut is not None:
            best = cut if best is None else better(units, best, cut)
    for stretch in _STRETCHES:
        if best is None:
            best = best_cut(units, most_cuts=_ORDER_CUTS, stretch_permille=stretch)
    if best is None:
        return None
    best = improve(
        units,
        best,
        seed=seed,
        max_iterations=max_iterations,
        target=target,
        deadline_s=deadline_s,
    )
    return best if evaluate(units.problem, best).feasible else None


def better(units: UnitGraph, plan: PartitionPlan, other: PartitionPlan) -> PartitionPlan:
    """Return the better one of two plans in the evaluator's eyes; the first one of equals."""
    before, after = (evaluate(units.problem, each) for each in (plan, other))
    if after.feasible and (not before.feasible or after.objective < before.objective):
        return other
    return plan


def plan_at(units: UnitGraph, devices: Sequence[Device], positions: Sequence[int]) -> PartitionPlan:
    """Return the plan that puts every unit on the device at its position."""
    used = set(positions)
    return PartitionPlan(
        units.lift([devices[position].name for position in positions]),
        tuple(device.name for position, device in enumerate(devices) if position in used),
    )


def _devices(units: UnitGraph, plan: PartitionPlan) -> list[Device]:
    """Return the devices that the search may use, by position: those of the plan first."""
    problem = units.problem
    devices = [problem.device_of[name] for name in plan.device_order]
    if problem.objective[0] == "devices":
        return devices
    most = len(problem.devices) if problem.max_devices is None else problem.max_devices
    unused = [device for device in problem.devices if device not in devices]
    return devices + unused[: max(0, most - len(devices))]


def _within_blocks(units: UnitGraph, plan: PartitionPlan, devices: Sequence[Device]) -> UnitGraph:
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


def _devices_of_units(units: UnitGraph, plan: PartitionPlan) -> list[Device]:
    problem = units.problem
    return [
        problem.device_of[plan.assignment[problem.operators[members[0]].name]]
        for members in units.members
    ]


@dataclass(slots=True)
class _Search:
    units: UnitGraph
    devices: list[Device]
    objective: ObjectiveName
    seed: int
    pace: Pace
    target: int
    deadline_s: float | None

    def run(self, positions: list[int], budget: int) -> list[int] | None:
        """Return the best positions found within the capacities, or None."""
        best: int | None = None
        shares = self.pace.shares[: 1 if len(self.units) > _ONE_ROUND_ABOVE else None]
        if any(limit is not None for limit in (d.memory_bytes for d in self.devices)):
            positions = self._mended(positions, budget // 3)
        each = budget // (2 * len(shares))
        for number, share in enumerate(shares):
            left = 2 * (len(shares) - number)
            seed = self.seed + number
            cluster_of, count = self._clusters(positions, share, seed)
            spared = each
            if count <= _WORTHWHILE * len(self.units):
                start = [0] * count
                for unit, name in enumerate(cluster_of):
                    start[name] = positions[unit]
                graph = contract(self.units, cluster_of, count)
                found = self._anneal(graph, start, Cooling(each, *self.pace.coarse), seed, left)
                spared, left = 0, left - 1
                if found is not None and (best is None or found[0] < best):
                    best = found[0]
                    positions = [found[1][name] for name in cluster_of]
            cooling = Cooling(each + spared, *self.pace.fine)
            found = self._anneal(self.units, positions, cooling, seed, left)
            if found is not None and (best is None or found[0] < best):
                best, positions = found
            if best is not None and best <= self.target:
                break
            if self.deadline_s is not None and time.perf_counter() > self.deadline_s:
                break
        return None if best is None else positions

    def _clusters(self, positions: list[int], share: float, seed: int) -> tuple[list[int], int]:
        """Return the cluster of every unit and how many there are; for no share, too many."""
        if not share:
            return positions, len(self.units)
        return cluster(self.units, positions, share / len(self.devices), seed)

    def _mended(self, positions: list[int], budget: int) -> list[int]:
        """Return positions within the capacities, if the least peak of memory leads to some."""
        state = StageState(self.units, self.devices)
        state.place(positions)
        if not state.excess_bytes():
            return positions
        cooling = Cooling(budget, *self.pace.fine)
        # Any plan that fits ends this search: anneal records no other.
        found = anneal(
            state,
            "peak_memory",
            cooling,
            self.seed,
            target=PEAK_SCALE,
            deadline_s=self.deadline_s,
        )
        return positions if found is None else found[1]

    def _anneal(
        self, graph: UnitGraph, positions: Sequence[int], cooling: Cooling, seed: int, left: int
    ) -> tuple[int, list[int]] | None:
        """Anneal for a fair part of the time, if `left` searches are to come with this one."""
        deadline_s = self.deadline_s
        if deadline_s is not None:
            now_s = time.perf_counter()
            deadline_s = now_s + (deadline_s - now_s) / left
        state = StageState(graph, self.devices, every_value=self.objective == "transfer")
        state.place(positions)
        return anneal(
            state,
            self.objective,
            cooling,
            seed,
            target=self.target,
            deadline_s=deadline_s,
        )
