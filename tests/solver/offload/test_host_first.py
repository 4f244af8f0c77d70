"""Plans whose first groups are on the host, against brute force over all of them."""

import itertools
import random
from dataclasses import replace

import pytest

from solver import PartitionError, SolveLimits, SolveStatus
from solver.offload import labels
from solver.offload.evaluate import evaluate_offload
from solver.offload.host_first import UnitGroup, fits_host_first, plan_host_first
from solver.offload.instance import OffloadInstance
from tests.support import offload_oracle
from tests.support.problem_counts import counts
from tests.support.random_jobs import random_job, to_cases

LIMITS = SolveLimits(5.0, workers=1, deterministic=True)


def grouped(draw):
    """A chain in pairs and single units, whose kinds repeat, on one to three devices."""
    groups, kinds = [], []
    for _ in range(draw.randint(1, 4)):
        size = draw.choice((1, 2, 2, 3))
        movable = draw.randint(0, size - 1) if draw.random() < 0.8 else 0
        groups.append(UnitGroup(tuple(range(len(kinds), len(kinds) + size)), movable))
        kinds += [1, 0, 1][-size:]
    devices = draw.choice((1, 1, 2, 2, 3))
    job = random_job(draw.random(), kinds=kinds, devices=devices, uneven_prompt=True, host=True)
    return OffloadInstance.of(job), groups


def plans(case, groups, least_first, may_cross):
    """Every such plan."""
    devices = range(len(case["devices"]))
    for first in range(least_first, len(groups) + 1):
        choices = [
            [
                (device, moved, to)
                for device in devices
                for moved in range(group.movable + 1)
                for to in (
                    (None, *devices[device + 1 :][: len(devices) * may_cross])
                    if moved
                    else (device,)
                )
            ]
            for group in groups[first:]
        ]
        for chosen in itertools.product(*choices):
            # On a device with last units of a group the next one begins.
            begins = [*(device for device, _, _ in chosen[1:]), None][: len(chosen)]
            crossed = [to is not None and moved > 0 for _, moved, to in chosen]
            if any(
                is_crossed and to != then
                for is_crossed, (_, _, to), then in zip(crossed, chosen, begins, strict=True)
            ):
                continue
            start = chosen[0][0] if chosen else 0
            places, modes = [], []
            for group in groups[:first]:
                places += [start] * len(group.units)
                modes += ["host"] * len(group.units)
            for group, (device, moved, to) in zip(groups[first:], chosen, strict=True):
                kept = len(group.units) - moved
                places += [device] * kept + [device if to is None else to] * moved
                modes += ["resident"] * kept + ["host" if to is None else "resident"] * moved
            if offload_oracle.fits(case, places, modes):
                yield places, modes


@counts(150, 1500, quick=150)
def test_the_optimum_is_that_of_brute_force(count):
    draw = random.Random(3)
    seen = set()
    for number in range(count):
        instance, groups = grouped(draw)
        if number % 8 == 7:
            # All units are on devices, or nothing fits.
            instance = replace(instance, host_bytes=0)
        (case, other), (runs, times) = to_cases(instance), instance.counts
        least_first = draw.choice((0, 0, 1))
        kind = {"least_first": least_first, "may_cross": draw.random() < 0.5}
        found = plan_host_first(instance, groups, **kind, limits=LIMITS)
        values = [
            runs * offload_oracle.value_of(case, *plan)
            + times * offload_oracle.value_of(other, *plan)
            for plan in plans(case, groups, **kind)
        ]
        assert fits_host_first(instance, groups, **kind, limits=LIMITS) is bool(values)
        if not values:
            assert found.status is SolveStatus.INFEASIBLE and found.plan is None
            continue
        assert found.status is SolveStatus.OPTIMAL
        assert found.objective == found.objective_bound == min(values)
        below_ns = int(draw.choice(sorted(set(values))[:3]))
        faster = plan_host_first(instance, groups, **kind, below_ns=below_ns, limits=LIMITS)
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
    monkeypatch.setattr(labels, "_WIDTHS", (1,))
    draw = random.Random(4)
    found_open = 0
    for _ in range(500):
        instance, groups = grouped(draw)
        instance = replace(instance, counts=(0, 1))
        case = to_cases(instance)[1]
        found = plan_host_first(instance, groups, least_first=0, may_cross=True, limits=LIMITS)
        values = [
            offload_oracle.value_of(case, *plan) for plan in plans(case, groups, 0, may_cross=True)
        ]
        if found.plan is None:
            assert found.status is SolveStatus.UNKNOWN or not values
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
        (
            [UnitGroup((0,)), UnitGroup((1,), 1)],
            "all units of a group are movable; keep its first one",
        ),
    ],
)
def test_groups_that_are_none_are_refused(groups, message):
    job = random_job(0, kinds=[0, 0], devices=1, host=True)
    with pytest.raises(PartitionError, match=message):
        plan_host_first(OffloadInstance.of(job), groups)


def test_a_limit_of_the_first_token_is_refused():
    instance = OffloadInstance.of(random_job(0, kinds=[0, 0], devices=1, host=True))
    limited = replace(instance, prompt_runs=(1, 0), first_token_limit_ns=5)
    with pytest.raises(PartitionError, match="know no limit of the first token; leave"):
        plan_host_first(limited, [UnitGroup((0, 1))])
