"""The least bottleneck, or step, of all cuts and device orders, against all of them."""

import itertools
import math

import pytest

from solver.dp.contiguous.cut_places import CutPlaces
from solver.dp.contiguous.least_program import least_stages, value_ns
from solver.dp.contiguous.limit_program import KindCosts, LimitProgram
from solver.dp.contiguous.linked_kinds import linked_kinds
from solver.dp.contiguous.segment_extras import SegmentExtras
from solver.dp.contiguous.segments import SegmentTables
from solver.dp.kernels.stage_chains import Stage
from solver.presolve.device_kinds import DeviceSets
from solver.presolve.instance import condense
from solver.stages.recompute_chooser import RecomputeChooser
from tests.support.random_problems import random_problem, recomputed_problem


def program_of(problem):
    units = condense(problem)
    kinds = linked_kinds(units)
    if units.pins_contradict or kinds is None:
        return None
    costs, places = KindCosts(units, kinds), CutPlaces(units).spread(100)
    tables = SegmentTables.of(units, places, len(places) - 1, costs.send_ns, costs.receive_ns)
    sets = DeviceSets.of([len(kind.names) for kind in kinds], len(problem.devices))
    extras = None
    if problem.may_recompute:
        extras = SegmentExtras(problem, tables, RecomputeChooser(problem).choices)
    return LimitProgram(costs, tables, sets, extras)


def load_ns(program, stage, flying):
    at = stage.end, stage.start - stage.end + program.tables.longest
    return program.loads_ns(stage.kind, flying)[at]


def cost_ns(program, stages):
    """The largest load, or what a step takes by the sums of each stage."""
    loads = [
        load_ns(program, stage, program.problem.in_flight(len(stages) - number))
        for number, stage in enumerate(stages)
    ]
    batches = program.problem.microbatches
    if program.problem.objective[0] == "bottleneck" or math.isinf(sum(loads)):
        return max(loads)
    beyond = []
    for number, load in enumerate(loads):
        flying = program.problem.in_flight(len(loads) - number)
        if program.problem.schedule == "gpipe" or not program.problem.is_training:
            beyond.append((batches - 1) * load)
            continue
        beyond.append((batches - (flying + 1) / 2) * load)
        if flying < batches:
            beyond.append((batches - flying) * load + sum(loads[number + 1 :]))
    return sum(loads) + max(beyond)


def every_plan(program):
    last = len(program.tables.places) - 1
    kinds = [kind for kind, count in enumerate(program.sets.counts[-1]) for _ in range(count)]
    for count in range(1, len(kinds) + 1):
        for cuts in itertools.combinations(range(1, last), count - 1):
            for order in set(itertools.permutations(kinds, count)):
                yield list(map(Stage, order, (0, *cuts), (*cuts, last)))


@pytest.mark.parametrize("objective", ["bottleneck", "step"])
@pytest.mark.parametrize("make", [random_problem, recomputed_problem])
def test_no_cut_of_any_device_order_is_better(make, objective):
    found = 0
    for seed in range(25):
        problem = make(seed, max_operators=7)
        if any(op.is_backward for op in problem.operators):
            continue
        problem = problem.replace(objective=objective, chunks_per_device=1, cuts=())
        program = program_of(problem)
        if program is None or len(program.tables.places) > 9:
            continue
        least = min(cost_ns(program, stages) for stages in every_plan(program))
        stages = least_stages(program)
        assert (stages is None) == math.isinf(least), seed
        if stages is not None:
            assert least <= cost_ns(program, stages) <= 1.0005 * least, seed
            assert value_ns(program, stages) == pytest.approx(cost_ns(program, stages)), seed
            assert least_stages(program, least) is None, seed
            found += 1
    assert found > 5
