"""Plans, bounds and timelines against brute force over all modes and cuts."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from solver import Device, Link, PartitionError, SolveLimits, SolveStatus, check_without
from solver.model.plan import PartitionPlan
from solver.model.quantities import format_ns
from solver.offload import bound
from solver.offload.evaluate import evaluate_offload
from solver.offload.instance import OffloadInstance
from solver.offload.plan import STEPS, plan_offload
from solver.offload.units import UNIT_MODES, Unit
from tests.support import offload_oracle
from tests.support.problem_counts import counts
from tests.support.random_jobs import random_job, to_cases

LIMITS = SolveLimits(2.0, workers=1, deterministic=True)
HOPS = ((0, 0), (0, 0))


def instance_of(seed, most_units, devices, **settings):
    """A random chain with a host; its second phase makes a token."""
    size = {"units": (1, most_units), "devices": devices, "context": 1}
    job = random_job(seed, host=True, **size, **settings)
    return OffloadInstance.of(job.replace(objective="token"))


def instances(count, seed):
    """Random chains: the longer, the fewer devices."""
    for number in range(count):
        yield instance_of(f"{seed} {number}", *((4, 2), (6, 1), (4, 2), (3, 3))[number % 4])


@counts(300, 1500)
def test_bound_optimum_and_plan_are_in_order(count, monkeypatch):
    # Chains of a few bytes: a buffer counts each.
    monkeypatch.setattr(bound, "_PIECE_BYTES", 1)
    feasible = is_best = is_proven = 0
    for instance in instances(count, 1):
        best = offload_oracle.optimum(to_cases(instance)[1])
        found = plan_offload(instance, LIMITS)
        if best is None:
            assert found.status is SolveStatus.INFEASIBLE
            continue
        feasible += 1
        evaluation = evaluate_offload(instance, found.plan)
        assert evaluation.feasible and evaluation.value_ns == found.objective
        assert found.objective_bound <= best <= found.objective
        assert (found.status is SolveStatus.OPTIMAL) == (found.objective_bound == found.objective)
        is_best += best == found.objective
        is_proven += best == found.objective_bound
    assert feasible >= count / 2
    assert is_best >= 0.95 * feasible
    assert is_proven >= 0.5 * feasible


@counts(60, 600)
def test_phases_share_a_plan(count):
    feasible = is_best = is_apart = 0
    for number in range(count):
        size = ((4, 2), (6, 1), (3, 3))[number % 3]
        instance = replace(instance_of(f"7 {number}", *size, uneven_prompt=True), counts=(1, 3))
        cases = to_cases(instance)
        found = plan_offload(instance, LIMITS)
        sums = [
            offload_oracle.value_of(cases[0], *plan) + 3 * offload_oracle.value_of(cases[1], *plan)
            for plan in offload_oracle.plans(cases[0])
        ]
        if not sums:
            assert found.status is SolveStatus.INFEASIBLE
            continue
        values = [*evaluate_offload(instance, found.plan).times_ns.values()]
        assert found.objective == values[0] + 3 * values[1]
        assert found.objective_bound <= min(sums) <= found.objective
        feasible += 1
        is_best += found.objective == min(sums)
        alone = [offload_oracle.optimum(each) for each in cases]
        is_apart += alone[0] + 3 * alone[1] < min(sums)
    assert is_best >= 0.95 * feasible
    assert is_apart  # Phases alone would have other plans.


@pytest.mark.parametrize("prefetch", ["buffer", "next", "none"])
@counts(150, 1000)
def test_timelines_are_those_that_are_played(count, prefetch):
    draw = random.Random(5)
    for instance in instances(count, 2):
        case = to_cases(instance)[1]
        every = list(offload_oracle.plans(case))
        for places, modes in draw.sample(every, min(len(every), 20)):
            found = evaluate_offload(instance, instance.plan(places, modes), prefetch=prefetch)
            assert found.feasible == offload_oracle.fits(case, places, modes, prefetch)
            if found.feasible:
                played = offload_oracle.value_of(case, places, modes, prefetch=prefetch)
                assert found.value_ns == played


def instance_with(units, *devices, host_bytes=None, host_hop_ns=0):
    """Units on devices, each given with the link from the host."""
    places, links = zip(*devices, strict=True)
    return OffloadInstance(
        tuple(units), places, links, host_bytes, ("all",), (1,), (HOPS,), (host_hop_ns,)
    )


def chain(memory, *, bandwidth=10**9, latency=0, host_ns=30, count=6, **settings):
    """Like units of 10 bytes and 4 ns on one device."""
    units = [Unit(f"u{index}", 10, 1, 0, UNIT_MODES, ((4,),), (host_ns,)) for index in range(count)]
    return instance_with(units, (Device("d", memory), Link(bandwidth, latency)), **settings)


def resident(name, weight_bytes, run_ns, modes=("resident", "streamed")):
    """A unit of one device that does not run on the host."""
    return Unit(name, weight_bytes, 0, 0, modes, ((run_ns,),), (0,))


def planned(instance, *modes):
    return instance.plan((0,) * len(modes), modes)


def test_everything_is_resident_if_it_fits():
    result = plan_offload(chain(66, host_hop_ns=3), LIMITS)
    assert result.status is SolveStatus.OPTIMAL
    assert set(result.plan.modes.values()) == {"resident"}
    assert (result.objective, result.objective_bound, result.gap) == (24, 24, 0)
    assert plan_offload(chain(65, host_hop_ns=3), LIMITS).objective > 24
    assert plan_offload(chain(None), LIMITS).objective == 24


def test_with_an_infinite_link_offload_costs_nothing():
    result = plan_offload(chain(16, bandwidth=None), LIMITS)
    assert result.status is SolveStatus.OPTIMAL
    assert result.objective == 24
    # One byte less, and no unit can be streamed beside all caches.
    assert plan_offload(chain(15, bandwidth=None), LIMITS).objective > 24


def test_what_does_not_fit_is_said_in_words():
    instance = chain(25, host_bytes=11)
    plan = planned(instance, *("resident", "resident", "streamed", "streamed", "host", "host"))
    found = evaluate_offload(instance, plan)
    assert found.value_ns is None and not found.feasible
    assert found.violations == (
        "device 'd' needs 24 B for good, and 10 B for loads; it has 25 B",
        "the host needs 42 B; it has 11 B",
    )
    units = [Unit(name, 5, 0, 0, ("resident",), ((0, 0),), (0,)) for name in ("a", "b")]
    instance = instance_with(units, (Device("d"), Link()), (Device("e"), Link()))
    found = evaluate_offload(instance, instance.plan((1, 0), ("streamed", "streamed")))
    assert found.violations == (
        "unit 'b' is on 'd', which comes before 'e', on which the unit before it is",
        "unit 'a' cannot be streamed: it has no weights, or writes them",
        "unit 'b' cannot be streamed: it has no weights, or writes them",
    )
    found = evaluate_offload(instance, instance.plan((0, 0), ("resident", "host")))
    assert found.violations == (
        "unit 'b' cannot be host: it has no time there, or is pinned to devices",
    )


def test_nothing_fits():
    result = plan_offload(chain(5, host_bytes=20), LIMITS)
    assert result.status is SolveStatus.INFEASIBLE
    assert result.plan is result.objective is result.objective_bound is result.gap is None


def test_steps_are_told_and_left_out():
    instance = instance_of(0, 12, 1)
    every = plan_offload(instance, LIMITS)
    assert [step.step for step in every.log] == [*STEPS][1 : 1 + len(every.log)]
    assert every.log[-1].incumbent_after == round(every.objective)
    assert every.log[-1].bound_after == every.objective_bound
    no_moves = plan_offload(instance, LIMITS, without=("mode moves",))
    assert [step.step for step in no_moves.log] == ["mode counts"]
    assert every.objective <= no_moves.objective
    no_counts = plan_offload(instance, LIMITS, without=("mode counts",))
    assert no_counts.objective_bound == 0 and no_counts.status is SolveStatus.FEASIBLE
    assert check_without(STEPS) is None
    counted = plan_offload(instance, LIMITS, solver="cp-sat")
    assert (counted.objective, counted.solver) == (no_moves.objective, "cp-sat")
    greedy = plan_offload(instance, LIMITS, solver="greedy")
    assert [step.step for step in greedy.log] == ["mode fill"]
    assert greedy.objective_bound is None and greedy.objective >= every.objective
    with pytest.raises(PartitionError, match="'ideal-dp' has no steps for a host; write one of"):
        plan_offload(instance, LIMITS, solver="ideal-dp")


@counts(60, 600)
def test_the_first_token_is_within_its_limit(count):
    draw, seen = random.Random(3), Counter()
    for number in range(count):
        size = ((4, 2), (6, 1), (3, 3))[number % 3]
        instance = instance_of(f"11 {number}", *size, uneven_prompt=True)
        prompt, token = to_cases(instance)
        times = [
            (offload_oracle.value_of(prompt, *plan), offload_oracle.value_of(token, *plan))
            for plan in offload_oracle.plans(token)
        ]
        firsts = [first for first, _ in times] or [0]
        limit = int(min(firsts) + draw.choice((-1, 0, 0.1, 0.5)) * (max(firsts) - min(firsts) + 1))
        if limit < 1:
            continue
        asked = replace(instance, prompt_runs=(1, 0), first_token_limit_ns=limit)
        found = plan_offload(asked, LIMITS)
        soon = [each for first, each in times if first <= limit]
        if not soon:
            assert found.plan is None
            seen[found.status] += 1
            continue
        assert found.evaluation.feasible and found.objective_bound <= min(soon) <= found.objective
        seen["best" if found.objective == min(soon) else "worse"] += 1
        late = evaluate_offload(
            replace(found.evaluation.instance, first_token_limit_ns=1), found.plan
        )
        if found.evaluation.times_ns["prompt"] > 1:
            assert late.violations == (f"the first token takes {_ns(found)}, more than 1 ns",)
    assert seen["best"] > 9 * seen["worse"] and seen[SolveStatus.INFEASIBLE]


def _ns(found):
    return format_ns(round(found.evaluation.times_ns["prompt"]))


def test_a_deterministic_search_repeats_itself():
    instance = instance_of(0, 40, 1)
    limits = SolveLimits(0.5, seed=4, deterministic=True)
    first, again = (plan_offload(instance, limits) for _ in range(2))
    assert replace(first, wall_time_s=again.wall_time_s) == again


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (PartitionPlan({}, ()), "the plan has no device for operator 'a'; write one"),
        (PartitionPlan(dict.fromkeys("abv", "d"), ("d",)), "names 'v', which is no operator; "),
        (PartitionPlan(dict.fromkeys("ab", "e"), ("e",)), "operator 'a' is on 'e', which is none"),
        (
            PartitionPlan(dict.fromkeys("ab", "d"), ("d",), mode_of={"b": "streamed"}),
            "the plan divides unit 'u0': operator 'b' is streamed on d, and others are not; ",
        ),
    ],
)
def test_plans_of_other_operators_or_devices_are_refused_in_one_line(plan, says):
    instance = chain(5, count=1)
    unit = replace(instance.units[0], operators=("a", "b"))
    with pytest.raises(PartitionError, match=says) as error:
        evaluate_offload(replace(instance, units=(unit,)), plan)
    assert "\n" not in str(error.value)


def test_the_bound_knows_a_row_of_units_that_work_long_for_what_they_load(monkeypatch):
    large = 10**7
    light = [resident(f"light {i}", large, 10 * large) for i in range(4)]
    heavy = [resident(f"heavy {i}", 20 * large, large) for i in range(6)]
    # Two of the light units come last and two first: the row passes the end.
    device = Device("d", 60 * large), Link(10**9)
    instance = instance_with([*light[:2], *heavy, *light[2:]], device)
    found = plan_offload(instance, SolveLimits(2.0, workers=1))
    # 124 bytes less 60 are streamed, and while the light units run no more than a buffer of these.
    assert (124 - 60 - 4 + 40 - 1) * large <= found.objective_bound <= found.objective
    monkeypatch.setattr(bound, "best_window", lambda gains: [])
    assert (
        plan_offload(instance, SolveLimits(2.0, workers=1)).objective_bound < found.objective_bound
    )
