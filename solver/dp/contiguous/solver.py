"""The best cut of the execution order into contiguous segments: dynamic programming.

This is the interval dynamic program of sequence balancers (PipeDream: Narayanan et al., SOSP
2019, section 3.1; DeepSpeed's ``partition_balanced``), with exact memory and costs, devices
that differ, and free device order. It is the strongest classical baseline, and the first
incumbent of the exact solver.
"""

from __future__ import annotations

from collections.abc import Sequence

from solver.dp.contiguous.chain_pass import ChainPass
from solver.dp.contiguous.cut_places import CutPlaces
from solver.dp.contiguous.farthest_cuts import farthest_cuts
from solver.dp.kernels.device_sets import Moves, are_few, device_moves, order_moves
from solver.evaluation.evaluate import evaluate
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.recomputation import with_required
from solver.presolve.instance import Instance, condense

_WORK_LIMIT = 3_000_000_000
"""Most array entries that one pass touches, by using fewer cuts if need be."""
_FIRST_PASS_CUTS = 192

_Best = tuple[tuple[int, ...], PartitionPlan]
"""The values of all objectives, and a feasible plan with them."""


def contiguous_plan(problem: PartitionProblem, clock: Clock = UNLIMITED) -> PartitionPlan | None:
    """Return the best plan whose stages are contiguous in the execution order.

    Segments end only where no unit (operators that must share a device) is divided, and at every
    hand-made cut (:mod:`solver.model.cuts`). The plan is feasible; None if no contiguous plan fits,
    though others may. A second, exact pass is left out if the first one used up the time.

    It is the optimum among contiguous cuts for ``bottleneck``, ``transfer``, ``devices`` and
    ``peak_memory`` with uniform links, except that with peer-to-peer charging a value read in
    several later segments is counted in the segments of the best suffix only; relayed values are
    exact. It is heuristic for ``latency`` (it minimises the sum of loads) and ``step`` (it
    minimises the bottleneck for each number of devices, and takes the best of these), for links
    that differ by pair (each device is charged at its slowest), for backward operators with cuts or
    pinned stages made by hand, for more than 1,024 distinguishable sets of devices (for the
    bottleneck :mod:`solver.dp.contiguous.farthest_cuts` chooses a device order with its cuts; else,
    or if that finds nothing, a few device orders are tried), and for later objectives of a tuple.
    The evaluator has the last word on the result.
    """
    units = condense(problem)
    if units.pins_contradict:
        return None
    best: _Best | None = None
    choices = device_moves(units)
    if not are_few(units):
        found = farthest_cuts(units, clock=clock)
        best = None if found is None else _better(problem, found, None)
        if best is not None:
            # Only later objectives can still improve.
            later = len(problem.objective) > 1
            choices = [order_moves(units, best[1].device_order)] if later else []
    for moves in choices:
        for count in _stage_counts(units, moves):
            best = _improve(units, moves, count, best, clock)
    return None if best is None else best[1]


def best_cut(
    units: Instance,
    *,
    most_cuts: int | None = None,
    stretch_permille: int = 1000,
    clock: Clock = UNLIMITED,
) -> PartitionPlan | None:
    """Return the cut of the units' own numbering that is best for the first objective.

    The numbering need not be the execution order. Live storages are counted as if the operators ran
    in it, so that the plan may need more memory, or less, than estimated. There are about
    `most_cuts` places for cuts at most, spread evenly, where few bytes cross. Capacities are
    stretched by `stretch_permille` per thousand: a start for a search that repairs. The clock ends
    a search for a device order, if there are too many; a pass over one order is not limited.

    The plan is the best one by the evaluator, over a few device orders if the sets of devices are
    too many, and not necessarily feasible; None if nothing fits.
    """
    best: tuple[tuple[bool, tuple[int, ...]], PartitionPlan] | None = None
    if not are_few(units):
        found = farthest_cuts(
            units, most_places=most_cuts, stretch_permille=stretch_permille, clock=clock
        )
        if found is not None:
            best = _rank(units, found), found
            if not best[0][0]:
                return found
    for moves in device_moves(units):
        places = CutPlaces(units).spread(_affordable(moves, most_cuts))
        roomy = moves.stretched(stretch_permille)
        objective = units.problem.objective[0]
        for count in _stage_counts(units, moves):
            for found in ChainPass(units.problem, units, roomy, places, objective, {}, count).run():
                rank = _rank(units, found)
                if best is None or rank < best[0]:
                    best = rank, found
    return None if best is None else best[1]


def _rank(units: Instance, plan: PartitionPlan) -> tuple[bool, tuple[int, ...]]:
    evaluation = evaluate(units.problem, plan)
    return not evaluation.feasible, evaluation.objective


def transition_count(units: Instance) -> int:
    """Return the number of transitions between sets of devices of a pass, for every cut."""
    return sum(moves.transition_count for moves in device_moves(units))


def _affordable(moves: Moves, most: int | None) -> int:
    affordable = int((2 * _WORK_LIMIT / max(moves.transition_count, 1)) ** 0.5)
    return affordable if most is None else min(most, affordable)


def _stage_counts(units: Instance, moves: Moves) -> Sequence[int | None]:
    """Return the numbers of stages to plan for, each in a pass of its own; None is any number.

    Stages are numbered from the first, but found from the last.
    """
    pins = units.problem.stage_pins
    return range(max(pins.values()) + 1, moves.sets.most + 1) if pins else [None]


def _better(problem: PartitionProblem, plan: PartitionPlan, best: _Best | None) -> _Best | None:
    """Return a plan, with required recomputation, if it is feasible and better than the best."""
    plan = with_required(problem, plan)
    evaluation = evaluate(problem, plan)
    if evaluation.feasible and (best is None or evaluation.objective < best[0]):
        return evaluation.objective, plan
    return best


def _improve(
    units: Instance, moves: Moves, stage_count: int | None, best: _Best | None, clock: Clock
) -> _Best | None:
    """Run a coarse pass, a full pass, and passes for the later objectives."""
    problem, cuts = units.problem, CutPlaces(units)
    ceilings: dict[str, int] = {}
    level = 0
    for spread in (_FIRST_PASS_CUTS, None, *[None] * (len(problem.objective) - 1)):
        if clock.is_over and best is not None:
            break
        name = problem.objective[level]
        if best is not None:
            # The best value so far bounds the pass; a plan with this very value is still found.
            ceilings[name] = best[0][level]
        places = cuts.spread(_affordable(moves, spread))
        for found in ChainPass(problem, units, moves, places, name, ceilings, stage_count).run():
            best = _better(problem, found, best)
        if spread is None:
            level += 1
            if best is None or name in ("transfer", "latency", "step"):
                # A sum over segments gives the next pass no bound per segment.
                break
            ceilings[name] = best[0][level - 1]
    return best
