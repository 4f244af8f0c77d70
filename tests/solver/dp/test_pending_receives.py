"""The least latency of chains whose devices have unlike links, against all plans of chains."""

from dataclasses import replace

import pytest

from solver import Device, Interconnect, Link
from solver.dp.limited_latency import LimitedChain
from solver.dp.pending_receives import exchangeable_devices
from solver.dp.sweep import GaveUp
from solver.model.clock import UNLIMITED
from solver.serving.metrics import evaluate_phases
from tests.support.problem_counts import counts
from tests.support.random_jobs import PROMPT, TOKEN, changed, random_job
from tests.support.serving_oracle import Listed


def times_of(serving):
    """Latency of a token, that of the prompt and bottleneck of all plans that fit all phases."""
    listed = Listed(serving)
    for places in listed.plans():
        found = evaluate_phases(serving, listed.plan(places))
        if all(each.feasible for each in found.values()):
            prompt_ns = serving.prompt_runs[PROMPT] * found[PROMPT].latency_ns
            yield found[TOKEN].latency_ns, prompt_ns, found[TOKEN].bottleneck_ns


def chain_of(serving):
    runs = {TOKEN: 1}
    return LimitedChain(
        serving.merged(runs, TOKEN),
        serving.merged(serving.prompt_runs, TOKEN),
        [serving.merged(runs, name) for name in (PROMPT, TOKEN)],
        [
            [(serving.phases[TOKEN], 1)],
            [(serving.phases[PROMPT], serving.prompt_runs[PROMPT])],
        ],
    )


@counts(40, 400)
@pytest.mark.parametrize("change", ["", "skips", "relayed"])
def test_it_equals_all_plans_listed(count, change):
    limits_that_matter = loads_that_matter = 0
    for seed in range(count):
        model = "inference" if seed % 2 else "weights"
        shape = {"skips": change == "skips", "uneven_prompt": True, "links": True}
        serving = random_job(seed, memory_model=model, **shape)
        if change == "relayed":
            links = serving.phases[TOKEN].interconnect
            serving = changed(serving, interconnect=replace(links, charging="relayed"))
        plans = list(times_of(serving))
        chain = chain_of(serving)
        limits = sorted({limited for _, limited, _ in plans})
        for limit in [*([limits[0] - 1] if limits else []), *limits]:
            best = min((least for least, own, _ in plans if own <= limit), default=None)
            found = chain.least_latency(UNLIMITED, limit_ns=limit)
            assert (None if found is None else found.latency_ns) == best, seed
            limits_that_matter += best is not None and best > min(plans)[0]
            if found is not None:
                own = evaluate_phases(serving, found.plan)
                assert own[TOKEN].latency_ns == best
                assert serving.prompt_runs[PROMPT] * own[PROMPT].latency_ns <= limit
        loads = sorted({load for *_, load in plans})
        for most in [*([loads[0] - 1] if loads else []), *loads]:
            best = min((least for least, _, load in plans if load <= most), default=None)
            found = chain.least_latency(UNLIMITED, most_load_ns=most)
            assert (None if found is None else found.latency_ns) == best, seed
            loads_that_matter += best is not None and best > min(plans)[0]
            if found is not None:
                assert evaluate_phases(serving, found.plan)[TOKEN].bottleneck_ns <= most
    assert limits_that_matter > 5 and loads_that_matter > 5


def test_devices_are_alike_if_exchanging_them_changes_no_link():
    near, far = Link(10**11, 1), Link(10**9, 5)
    names = "abcd"
    node = {"a": 0, "b": 0, "c": 1, "d": 1}
    links = {(x, y): near for x in names for y in names if x != y and node[x] == node[y]}
    problem = random_job(1).phases[TOKEN]
    problem = problem.replace(
        operators=[op.__class__(op.name, 1, op.reads) for op in problem.operators],
        devices=[Device(name) for name in names],
        interconnect=Interconnect(far, links),
    )
    assert exchangeable_devices(problem) == {"a": "a", "b": "a", "c": "c", "d": "c"}
    one_way = {**links, ("b", "c"): near}
    changed_links = problem.replace(interconnect=Interconnect(far, one_way))
    assert exchangeable_devices(changed_links) == {"a": "a", "b": "b", "c": "c", "d": "d"}


def test_what_it_does_not_do():
    case = random_job(1, links=True)
    overlapping = replace(case.phases[TOKEN].interconnect, overlap=True)
    with pytest.raises(GaveUp, match="overlap"):
        chain_of(changed(case, interconnect=overlapping))
