"""Plans whose first groups are on the host, against brute force over all of them."""

import itertools
import random
from dataclasses import replace

import pytest

from solver import PartitionError, SolveLimits, SolveStatus
from solver.cp import run
from solver.cp.run import single_solver
from solver.offload.evaluate import evaluate_offload
from solver.offload.host_first import UnitGroup, plan_host_first
from solver.offload.instance import OffloadInstance
from tests.support import offload_oracle
from tests.support.problem_counts import counts
from tests.support.random_jobs import random_job, to_cases

LIMITS = SolveLimits(5.0, workers=1, deterministic=True)


def grouped(draw):
    """A chain in pairs and single units, whose kinds repeat, on one to three devices."""
    groups, kinds = [], []
    for _ in range(draw.randint(1, 4)):
        size = draw.choice((1, 2, 2))
        last_apart = size == 2 and draw.random() < 0.8
        groups.append(UnitGroup(tuple(range(len(kinds), len(kinds) + size)), last_apart))
        kinds += [0, 1][-size:]
    devices = draw.choice((1, 1, 2, 2, 3))
    job = random_job(draw.random(), kinds=kinds, devices=devices, uneven_prompt=True, host=True)
    return OffloadInstance.of(job), groups


def plans(case, groups, least_first):
    devices = range(len(case["devices"]))
    for first in range(least_first, len(groups) + 1):
        choices = [
            [(d, m) for d in devices for m in ("resident", "host")[: 1 + group.last_apart]]
            for group in groups[first:]
        ]
        for chosen in itertools.product(*choices):
            start = chosen[0][0] if chosen else 0
            places, modes = [], []
            for group in groups[:first]:
                places += [start] * len(group.units)
                modes += ["host"] * len(group.units)
            for group, (device, mode) in zip(groups[first:], chosen, strict=True):
                places += [device] * len(group.units)
                modes += ["resident"] * (len(group.units) - 1) + [mode]
            if offload_oracle.fits(case, places, modes):
                yield places, modes


@counts(150, 1500, quick=150)
def test_the_optimum_is_that_of_brute_force(count):
    draw = random.Random(3)
    seen = set()
    for _ in range(count):
        instance, groups = grouped(draw)
        (case, other), (runs, times) = to_cases(instance), instance.counts
        least_first = draw.choice((0, 0, 1))
        found = plan_host_first(instance, groups, least_first=least_first, limits=LIMITS)
        values = [
            runs * offload_oracle.value_of(case, *plan)
            + times * offload_oracle.value_of(other, *plan)
            for plan in plans(case, groups, least_first)
        ]
        if not values:
            assert found.status is SolveStatus.INFEASIBLE and found.plan is None
            continue
        assert found.status is SolveStatus.OPTIMAL
        assert found.objective == found.objective_bound == min(values)
        below_ns = draw.choice(sorted(set(values))[:3])
        faster = plan_host_first(
            instance, groups, least_first=least_first, below_ns=below_ns, limits=LIMITS
        )
        assert faster.objective_bound == min(values)
        assert faster.objective == (min(values) if min(values) < below_ns else None)
        assert faster.status is not SolveStatus.INFEASIBLE
        first_ns, other_ns = evaluate_offload(instance, found.plan).times_ns.values()
        assert found.objective == runs * first_ns + times * other_ns
        placed = instance.units_of(found.plan)
        modes = [placed[f"u{group.units[-1]}"][1] for group in groups]
        firsts = [placed[f"u{group.units[0]}"][1] for group in groups]
        seen.add((firsts[0] == "host", "resident" in modes, firsts != modes))
    assert len(seen) == 7  # All but that nothing is resident, nor on the host.


def test_a_search_that_ends_early_values_its_plan_by_the_evaluator(monkeypatch):
    """Tests first solutions, whose rows may count more than the plan takes."""

    def hasty(seed, subsolver=None):
        solver = single_solver(seed, subsolver)
        solver.parameters.stop_after_first_solution = True
        return solver

    monkeypatch.setattr(run, "single_solver", hasty)
    draw = random.Random(4)
    found_open = 0
    for _ in range(500):
        instance, groups = grouped(draw)
        instance = replace(instance, counts=(0, 1))
        case = to_cases(instance)[1]
        found = plan_host_first(instance, groups, limits=LIMITS)
        values = [offload_oracle.value_of(case, *plan) for plan in plans(case, groups, 0)]
        if found.plan is None:
            assert not values
            continue
        assert found.objective == evaluate_offload(instance, found.plan).value_ns
        assert found.objective_bound <= min(values) <= found.objective
        assert (found.status is SolveStatus.OPTIMAL) == (found.objective == found.objective_bound)
        found_open += found.status is SolveStatus.FEASIBLE
    assert found_open > 20


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([UnitGroup((0, 2))], "groups are not all units in order; put each unit into one group"),
        ([UnitGroup((0,)), UnitGroup((1,), True)], "a group of one unit has none to be apart"),
    ],
)
def test_groups_that_are_none_are_refused(groups, message):
    job = random_job(0, kinds=[0, 0], devices=1, host=True)
    with pytest.raises(PartitionError, match=message):
        plan_host_first(OffloadInstance.of(job), groups)
