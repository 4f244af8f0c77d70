"""Small problems that programs over ideals and cuts solve: their stages, and all of their plans."""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np

from solver import PartitionPlan, SolveLimits, SolveStatus, solve
from solver.dp.ideal_program import why_declined
from solver.model.devices import STAGING_HOST
from solver.presolve.device_kinds import DeviceSets, interchangeable_kinds
from solver.presolve.instance import condense
from solver.stages.blocks import collapse_units
from solver.stages.costs import StageCosts
from solver.stages.ideals import list_ideals
from tests.support.answers import check_proven, check_true
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance


def stage_costs(seed, **settings):
    """The costs of a random problem without links between devices, and its sets of devices."""
    problem = without_links(random_problem(seed, **settings))
    return costs_of(problem.replace(chunks_per_device=1, objective=("bottleneck",)))


def without_links(problem):
    """The problem without links between devices."""
    links = {
        pair: link for pair, link in problem.interconnect.links.items() if STAGING_HOST in pair
    }
    return problem.replace(interconnect=replace(problem.interconnect, links=links))


def cuts_of(units):
    """Yield plans of all cuts of the order of units and all orders of devices, with the cuts."""
    names = [device.name for device in units.problem.devices]
    count = len(units)
    for stages in range(1, min(count, len(names)) + 1):
        for places in combinations(range(1, count), stages - 1):
            borders = [0, *places, count]
            for order in permutations(names, stages):
                device_of = np.repeat(order, np.diff(borders)).tolist()
                yield PartitionPlan(units.lift(device_of), order), borders


def costs_of(problem):
    """The costs of a problem's stages, and its sets of devices."""
    units = condense(problem)
    kinds = interchangeable_kinds(units)
    blocks = collapse_units(units, forget_weights=False)
    ideals = list_ideals(blocks.count, blocks.edges, 10_000)
    costs = StageCosts(units, kinds, blocks, ideals)
    most = problem.max_devices or len(problem.devices)
    counts = [len(kind.devices) for kind in kinds]
    return costs, DeviceSets.of(counts, min(most, len(problem.devices)))


def stages_of(costs):
    """All pairs of nested ideals."""
    inside = costs.ideals.member.T
    return [
        (start, end)
        for start in range(len(costs.ideals))
        for end in range(len(costs.ideals))
        if start != end and not (inside[start] & ~inside[end]).any()
    ]


def check_ideals(problem, label):
    """Check the answer of the program over ideals against brute force; return its status."""
    result = solve(problem, SolveLimits(None, workers=1), solver="ideal-dp")
    if result.status is SolveStatus.UNKNOWN:
        assert result.reason == why_declined(problem) or "latency" in result.reason, label
        assert result.plan is None, label
        return result.status
    best = brute_force(to_instance(problem))
    if result.status is SolveStatus.FEASIBLE:
        assert not one_reader_each(problem), f"{label}: {result}"
        check_true(result, best, label)
    else:
        check_proven(result, best, label)
    return result.status


def one_reader_each(problem):
    """Whether the program promises an optimum: a send is never counted for two devices."""
    return problem.interconnect.charging != "peer_to_peer" or all(
        len(set(readers)) < 2 for readers in problem.readers_of.values()
    )
