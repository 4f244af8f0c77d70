"""Sets of devices of use, against all plans that cut an order."""

import itertools

import pytest

from solver.dp.kernels.device_sets import ViableStates, device_moves
from solver.evaluation.evaluate import evaluate
from solver.presolve.instance import condense
from tests.support.ideal_cases import cuts_of
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem


@pytest.mark.parametrize("ceiling", [False, True])
@counts(27, 80)
def test_no_plan_uses_a_set_of_devices_that_is_left_out(count, ceiling):
    kept = left_out = 0
    for seed in range(count):
        problem = random_problem(50_000 + seed, max_operators=6, objective=("bottleneck",))
        units = condense(problem)
        if units.pins_contradict:
            continue
        [moves] = device_moves(units)
        first = [0, *itertools.accumulate(map(len, units.members))]
        feasible = [
            (evaluation.bottleneck_ns, plan, borders)
            for plan, borders in cuts_of(units)
            if (evaluation := evaluate(problem, plan)).feasible
        ]
        if not feasible:
            continue
        best_ns = min(entry[0] for entry in feasible)
        listed = moves.sets.counts.tolist()
        viable = ViableStates(units, moves, best_ns if ceiling else None)
        kind_of = {name: k for k, kind in enumerate(moves.kinds) for name in kind.names}
        for bottleneck_ns, plan, borders in feasible:
            if ceiling and bottleneck_ns > best_ns:
                continue
            for stage, border in enumerate(borders[:-1]):
                kinds = [kind_of[name] for name in plan.device_order[stage:]]
                counts = list(map(kinds.count, range(len(moves.kinds))))
                assert viable.states(first[border])[listed.index(counts)], (seed, plan)
                kept += 1
        for place in first:
            left_out += int((~viable.states(place)).sum())
    assert kept > count * 15 // 4
    assert left_out > count * 15 // 4
