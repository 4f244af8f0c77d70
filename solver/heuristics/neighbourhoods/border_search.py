"""Large neighbourhood search over the borders of all stages at once.

Shaw, "Using constraint programming and local search methods to solve vehicle routing problems",
CP 1998. A neighbourhood is a small model of a whole plan
(:mod:`solver.heuristics.neighbourhoods.border_clusters`), in which CP-SAT searches neighbourhoods
of its own.
"""

from __future__ import annotations

import itertools
import random

from solver.bounds.spine import long_paths
from solver.evaluation.evaluate import evaluate
from solver.heuristics.neighbourhoods.border_clusters import BorderClusters
from solver.heuristics.neighbourhoods.sub_solve import SubSolver
from solver.heuristics.side_groups import SideGroups, movable_groups
from solver.model.clock import UNLIMITED, Clock
from solver.model.cuts import is_hand_made
from solver.model.plan import PartitionPlan
from solver.presolve.instance import Instance

_PIECES = (8, 12)
"""Pieces of the path of a stage, cut from either border, in turn and on either path."""
_MOST_IDLE = 4
"""Most searches in turn without a gain, each with cuts of its own."""
_MOST_WORK_S = 2.0
"""Of one model, in CP-SAT's units: the next one has other cuts, and finds what this one lacks."""
_MOST_PLACES = 750
"""Stages that all clusters together may have: larger models find next to nothing."""


def improve_borders(
    units: Instance,
    plan: PartitionPlan,
    *,
    clock: Clock = UNLIMITED,
    workers: int = 1,
    seed: int = 0,
    target: int = 0,
) -> PartitionPlan:
    """Return a plan that is at least as good as `plan`, for problems whose goal is the bottleneck.

    Searches neighbourhoods along either path, each with cuts of its own, until none of them helps.

    Parameters
    ----------
    plan : PartitionPlan
        Feasible, of one chunk, without hand-made cuts; others are returned as they are, and so
        are those of graphs that make nothing for many stages (``movable_groups``).
    clock : Clock
        If it does not end the search and `workers` is 1, the result depends on nothing but the
        arguments.
    workers : int
        Search threads.
    seed : int
        Of the choice of cuts.
    target : int
        Stop when the bottleneck reaches this, such as a proven bound.
    """
    problem = units.problem
    count = len(plan.device_order)
    if problem.objective[0] != "bottleneck" or plan.chunks or count < 2 or is_hand_made(problem):
        return plan
    value = evaluate(problem, plan).objective
    rng = random.Random(seed)
    sides = [SideGroups.of(units, path) for path in long_paths(units)]
    clusters = [BorderClusters(units, own, rng) for own in sides if movable_groups(units, own)]
    solver = SubSolver(units, workers, seed, clock, _MOST_WORK_S)
    tries = list(itertools.product(_PIECES, clusters))
    idle = 0
    for pieces, near in itertools.cycle(tries):
        if idle == _MOST_IDLE or value[0] <= target or clock.is_over:
            break
        idle += 1
        neighbourhood = near.around(units.lowered(plan.stage_index), count, pieces)
        if neighbourhood.windows.places > _MOST_PLACES:
            continue
        found = solver.lower(plan, value[0], neighbourhood, range(count))
        if found is None:
            continue
        evaluation = evaluate(problem, found)
        if evaluation.feasible and evaluation.objective < value:
            plan, value, idle = found, evaluation.objective, 0
    return plan
