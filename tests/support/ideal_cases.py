"""Small problems that the program over ideals solves, with the costs of their stages."""

from dataclasses import replace

from solver.model.devices import STAGING_HOST
from solver.presolve.device_kinds import DeviceSets, interchangeable_kinds
from solver.presolve.instance import condense
from solver.stages.blocks import collapse_units
from solver.stages.costs import StageCosts
from solver.stages.ideals import list_ideals
from tests.support.random_problems import random_problem


def stage_costs(seed, **settings):
    """The costs of a random problem without links between devices, and its sets of devices."""
    problem = random_problem(seed, **settings)
    links = {
        pair: link for pair, link in problem.interconnect.links.items() if STAGING_HOST in pair
    }
    problem = problem.replace(
        chunks_per_device=1,
        objective=("bottleneck",),
        interconnect=replace(problem.interconnect, links=links),
    )
    return costs_of(problem)


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
