"""The best plans of chains that serve, against all their plans, listed."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest

import solver.serving.search
from solver import (
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionError,
    PartitionProblem,
    SolveLimits,
    SolveStatus,
    Weight,
)
from solver.dp.sweep import GaveUp
from solver.model.job import Job
from solver.serving.contexts import Contexts
from solver.serving.metrics import evaluate_phases, metrics_of
from solver.serving.solve import solve_job
from tests.support.problem_counts import some
from tests.support.random_jobs import PROMPT, TOKEN, changed, random_job
from tests.support.serving_oracle import Listed

LIMITS = SolveLimits(20, workers=1)
SEEDS = range(12)
MODELS = "weights", "inference"


def least(values):
    return min(values, default=None)


def drawn(seed, memory_model="weights", links="alike", *, is_uneven=False):
    settings = {"uneven_prompt": is_uneven, "links": links == "unlike"}
    serving = random_job(seed, memory_model=memory_model, **settings)
    listed = Listed(serving)
    return serving, listed, [places for places in listed.plans() if listed.fits(places)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("memory_model", MODELS)
@pytest.mark.parametrize("links", ["alike", "unlike"])
def test_request_and_token(seed, memory_model, links):
    serving, listed, plans = drawn(seed, memory_model, links)
    for objective, time in (
        ("request", listed.request),
        ("token", lambda places: listed.latency(places, TOKEN)),
    ):
        found = solve_job(serving.replace(objective=objective), LIMITS)
        best = least(map(time, plans))
        assert found.status is (SolveStatus.INFEASIBLE if best is None else SolveStatus.OPTIMAL)
        assert found.objective == best
        assert found.plan is None if best is None else found.objective_bound == best


def give_up(*_):
    raise GaveUp("the units are no chain")


def without_chains(monkeypatch):
    """Let no program of chains know anything."""
    monkeypatch.setattr(solver.serving.search, "LimitedChain", give_up)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("memory_model", "links", "is_chain"),
    [
        *((model, links, True) for model in MODELS for links in ("alike", "unlike")),
        ("weights", "alike", False),
    ],
)
def test_the_first_token_has_a_limit(seed, memory_model, links, is_chain, monkeypatch):
    """Tests that without a chain the limit has bounds."""
    if not is_chain:
        without_chains(monkeypatch)
    serving, listed, plans = drawn(seed, memory_model, links, is_uneven=True)
    times = sorted({listed.first_token(places) for places in plans}) or [2]
    for limit in (times[0] - 1, *times[:: max(1, len(times) // 3)]):
        within = [places for places in plans if listed.first_token(places) <= limit]
        best = least(listed.latency(places, TOKEN) for places in within)
        found = solve_job(
            serving.replace(objective="token", first_token_limit_ns=max(limit, 1)), LIMITS
        )
        if best is None:
            assert found.status is SolveStatus.INFEASIBLE
            assert not plans or "first token" in found.reason
            continue
        assert found.objective_bound <= best <= found.objective
        assert found.evaluation.metrics.first_token_ns <= limit
        assert found.status is SolveStatus.OPTIMAL or not is_chain


def played_round_ns(loads, groups):
    """The time between two tokens of a group, of groups that queue at one device after another."""
    free, ready = [0] * len(loads), [0] * groups
    starts = []
    # The steady state is there after as many rounds as there are loads; all rounds are counted.
    rounds = 60 * len(loads)
    for _ in range(2 * rounds):
        for group in range(groups):
            at = ready[group]
            for device, load in enumerate(loads):
                at = free[device] = max(at, free[device]) + load
            ready[group] = at
        starts.append(ready[0])
    return (starts[-1] - starts[rounds - 1]) / rounds


def least_token_ns(listed, places):
    """The least time of a token, of any number of groups whose caches fit."""
    loads = listed.loads(places, TOKEN)
    return min(
        (
            max(Fraction(sum(loads), groups), max(loads))
            for groups in range(1, len(loads) + 1)
            if listed.fits(places, groups=groups)
        ),
        default=None,
    )


def test_groups_in_turns_take_as_long_as_when_they_are_played():
    bound_by_groups = 0
    for seed in range(40):
        serving = random_job(seed)
        listed = Listed(serving)
        for places in listed.plans():
            if not listed.fits(places):
                continue
            plan = listed.plan(places)
            found = metrics_of(serving, plan, evaluate_phases(serving, plan))
            loads = listed.loads(places, TOKEN)
            round_ns = played_round_ns(loads, found.groups)
            tokens = 1e9 * serving.batch
            assert found.tokens_per_s == pytest.approx(found.groups * tokens / round_ns)
            token_ns = float(least_token_ns(listed, places))
            assert tokens / found.tokens_per_s == pytest.approx(token_ns)
            assert listed.fits(places, groups=found.groups)
            bound_by_groups += round_ns > found.groups * max(loads) and found.groups > 1
    assert bound_by_groups > 5


@pytest.mark.parametrize("seed", some(30, of=30))
@pytest.mark.parametrize("memory_model", MODELS)
@pytest.mark.parametrize("links", ["alike", "unlike"])
@pytest.mark.parametrize("is_chain", [True, False])
def test_throughput(seed, memory_model, is_chain, links, monkeypatch):
    serving, listed, _ = drawn(seed, memory_model, links)
    times = [least_token_ns(listed, places) for places in listed.plans()]
    best = least(time for time in times if time is not None)
    if not is_chain:
        without_chains(monkeypatch)
    found = solve_job(serving.replace(objective="throughput"), LIMITS)
    if best is None:
        assert found.status is SolveStatus.INFEASIBLE
        return
    most = float(serving.batch * 10**9 / best)
    assert found.evaluation.metrics.tokens_per_s == found.objective
    if is_chain:
        assert found.status is SolveStatus.OPTIMAL
        assert found.objective == pytest.approx(most)
    else:
        assert found.objective <= most * (1 + 1e-9) and most <= found.objective_bound * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("memory_model", MODELS)
def test_context(seed, memory_model):
    serving = random_job(seed, memory_model=memory_model)
    listed = Listed(serving)
    most = 0
    for places in listed.plans():
        context = most
        while listed.fits(places, context + 1):
            context += 1
        most = max(most, context)
    found = solve_job(serving.replace(objective="context"), LIMITS)
    if not most:
        assert found.status is SolveStatus.INFEASIBLE
        return
    assert found.objective == serving.batch * most <= found.objective_bound
    # Two phases may fit alone but not together: then it stays open whether more tokens do.
    assert found.status is SolveStatus.OPTIMAL or (memory_model, seed) == ("inference", 15)
    assert found.evaluation.job.context == most
    # Of the plans with as many, it is the fastest.
    fitting = [places for places in listed.plans() if listed.fits(places, most)]
    assert found.evaluation.metrics.token_ns == min(
        listed.latency(places, TOKEN) for places in fitting
    )
    # One token more does not fit the plan, and no other.
    more = Contexts(serving).at(most + 1)
    broken = [e.violations for e in evaluate_phases(more, found.plan).values()]
    assert any(broken)
    job = found.evaluation.job
    assert not any(e.violations for e in evaluate_phases(job, found.plan).values())


def test_no_tokens_after_the_prompt_make_it_the_latency_of_the_prompt():
    serving = random_job(4)
    alone = solve_job(serving.replace(generate=0, objective="request"), LIMITS)
    once = serving.replace(token_phase=PROMPT, generate=0, prompt_runs={PROMPT: 1})
    prompt = solve_job(once, LIMITS)
    assert alone.objective == serving.prompt_runs[PROMPT] * prompt.objective
    many = solve_job(serving.replace(generate=10**6, objective="request"), LIMITS)
    token = solve_job(serving.replace(objective="token"), LIMITS)
    assert many.evaluation.metrics.token_ns == token.objective


def test_any_context_fits_where_no_cache_grows():
    serving = random_job(1)
    still = replace(serving, cache_bytes_per_token=dict.fromkeys(serving.cache_bytes_per_token, 0))
    assert solve_job(serving.replace(objective="token"), LIMITS).evaluation.most_tokens > 0
    found = solve_job(still.replace(objective="token"), LIMITS)
    assert found.status is SolveStatus.OPTIMAL
    assert found.evaluation.most_tokens == math.inf
    longest = solve_job(still.replace(objective="context"), LIMITS)
    assert longest.status is SolveStatus.OPTIMAL and longest.gap == 0
    assert (
        longest.objective == longest.objective_bound == longest.evaluation.most_tokens == math.inf
    )
    assert longest.evaluation.metrics == found.evaluation.metrics


@pytest.mark.parametrize("memory_model", MODELS)
def test_of_any_context_the_fastest_plan_is_found(memory_model):
    slower_than_any = endless = 0
    for seed in range(24):
        serving = with_one_unlimited(random_job(seed, memory_model=memory_model))
        listed = Listed(serving)
        # What grows is beyond every capacity with as many positions.
        fitting = [places for places in listed.plans() if listed.fits(places, 10**4)]
        found = solve_job(serving.replace(objective="context"), LIMITS)
        assert (found.objective == math.inf) == bool(fitting)
        if fitting:
            endless += 1
            best = min(listed.latency(places, TOKEN) for places in fitting)
            assert found.evaluation.metrics.token_ns == best
            now = [places for places in listed.plans() if listed.fits(places)]
            slower_than_any += best > min(listed.latency(places, TOKEN) for places in now)
    assert endless > 5 and slower_than_any


def with_one_unlimited(serving):
    """The case whose last device holds anything."""

    *limited, last = serving.phases[TOKEN].devices
    return changed(serving, devices=(*limited, replace(last, memory_bytes=None)))


def test_what_is_proven_without_a_limit_is_not_said_of_plans_with_one(monkeypatch):
    without_chains(monkeypatch)
    # Half a nanosecond a byte: three runs take two together and three one after the other.
    links = Interconnect(links={("a", "b"): Link(2 * 10**9)})
    operators = Operator("x", 1, value_bytes=1, weights=("w",)), Operator("y", 1, ("x",))
    both = PartitionProblem(
        (operators[0], replace(operators[1], weights=("v",), allowed_devices={"b"})),
        (Device("a", 10), Device("b", 10)),
        weights={"w": Weight(6), "v": Weight(6)},
        interconnect=links,
        memory_model="weights",
    )
    serving = Job(
        phases={PROMPT: both, TOKEN: both},
        prompt_runs={PROMPT: 3},
        token_phase=TOKEN,
        generate=1,
        batch=1,
        context=1,
        cache_bytes_per_token={},
    )
    soonest = solve_job(
        serving.replace(objective="token"), LIMITS
    ).evaluation.metrics.first_token_ns
    found = solve_job(serving.replace(objective="token", first_token_limit_ns=soonest - 1), LIMITS)
    assert (found.status, found.plan, found.objective) == (SolveStatus.UNKNOWN, None, None)
    assert "first token" in found.reason


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_that_fit_are_told_of_values_where_other_contexts_are_known(seed):
    serving = random_job(seed, memory_model="inference")
    found = solve_job(serving.replace(objective="token"), LIMITS)
    if found.plan is None:
        assert found.evaluation is None
        return
    context = found.evaluation.most_tokens // serving.batch
    for at, fits in ((context, True), (context + 1, False)):
        held = evaluate_phases(Contexts(serving).at(at), found.plan).values()
        assert any(each.violations for each in held) != fits
    assert (
        found.evaluation.most_tokens
        <= solve_job(serving.replace(objective="context"), LIMITS).objective_bound
    )
    assert (
        solve_job(serving.replace(others={}, objective="token"), LIMITS).evaluation.most_tokens
        is None
    )


def test_what_cannot_be_asked():
    serving = random_job(0)
    with pytest.raises(PartitionError, match="'speed'"):
        serving.replace(objective="speed")
    with pytest.raises(PartitionError, match="is for the objective 'token', not 'request'"):
        serving.replace(objective="request", first_token_limit_ns=5)
