"""The least latency with a limit on another one, against all plans of chains."""

import itertools
import random
from dataclasses import replace

import pytest

from solver import Device, Interconnect, Link, Operator, PartitionProblem
from solver.dp.limited_latency import LimitedChain
from solver.dp.sweep import GaveUp
from solver.model.clock import UNLIMITED, Clock
from solver.model.limits import SolveLimits
from solver.serving.metrics import evaluate_phases
from tests.support.problem_counts import counts
from tests.support.random_jobs import PROMPT, TOKEN, changed, random_job
from tests.support.serving_oracle import Listed

FAR_NS = 10**12
"""No latency is as large."""


def merged(serving):
    """The latency of a token, that of the prompt, what each phase holds, and runs of phases."""
    runs = {TOKEN: 1}
    return (
        serving.merged(runs, TOKEN),
        serving.merged(serving.prompt_runs, TOKEN),
        [serving.merged(runs, name) for name in (PROMPT, TOKEN)],
        [
            [(serving.phases[name], count)]
            for name, count in (*runs.items(), *serving.prompt_runs.items())
        ],
    )


def times_of(serving, plan):
    """Latency of a token, that of the prompt and bottleneck of a plan that fits; else None."""
    found = evaluate_phases(serving, plan)
    if not all(each.feasible for each in found.values()):
        return None
    prompt_ns = serving.prompt_runs[PROMPT] * found[PROMPT].latency_ns
    return found[TOKEN].latency_ns, prompt_ns, found[TOKEN].bottleneck_ns


LINKED, RELAYED = {"charging": "peer_to_peer"}, {"charging": "relayed"}
UNLIKE = (LINKED, RELAYED)
"""Of devices that have links of their own."""
SETTINGS = {
    "as it is": {},
    "two devices": {"max_devices": 2},
    "overlap": {
        "interconnect": Interconnect(Link(10**9, 20), charging="host_staged", overlap=True)
    },
    "host staged": {"interconnect": Interconnect(Link(10**9, 3), charging="host_staged")},
    "relayed": {"interconnect": Interconnect(Link(10**9, 3), charging="relayed")},
    "unlike": LINKED,
    "unlike, relayed": RELAYED,
}


@pytest.mark.parametrize("memory_model", ["weights", "inference"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("readers", [1, 2])
@counts(12, 400, quick=12)
def test_it_equals_all_plans_listed(count, settings, memory_model, readers):
    limits_that_matter = loads_that_matter = 0
    for seed in range(48, 48 + count):
        shape = {"memory_model": memory_model, "skips": readers > 1, "uneven_prompt": True}
        serving = random_job(seed, links=settings in UNLIKE, **shape)
        if settings == RELAYED:
            links = serving.phases[TOKEN].interconnect
            serving = changed(serving, interconnect=replace(links, **RELAYED))
        elif settings != LINKED:
            serving = changed(serving, **settings)
        listed = Listed(serving)
        plans = {times_of(serving, listed.plan(places)) for places in listed.plans()} - {None}
        chain = LimitedChain(*merged(serving))
        times = sorted({limited for _, limited, _ in plans})
        for limit in [*([times[0] - 1] if times else []), *times, FAR_NS]:
            best = min((least for least, limited, _ in plans if limited <= limit), default=None)
            found = chain.least_latency(UNLIMITED, limit_ns=limit)
            limits_that_matter += best is not None and best > min(plans)[0]
            assert (None if found is None else found.latency_ns) == best, seed
            if found is not None:
                own_ns, prompt_ns, _ = times_of(serving, found.plan)
                assert own_ns == best and prompt_ns <= limit, seed
        loads = sorted({load for *_, load in plans})
        for most in [*([loads[0] - 1] if loads else []), *loads]:
            best = min((least for least, _, load in plans if load <= most), default=None)
            found = chain.least_latency(UNLIMITED, most_load_ns=most)
            loads_that_matter += best is not None and best > min(plans)[0]
            latency_ns = None if found is None else found.latency_ns
            if readers == 1 or settings:
                assert latency_ns == best, seed
            else:
                # Of a send to each reader one counts.
                assert best is None or latency_ns <= best, seed
    assert limits_that_matter > 5 and loads_that_matter > 5


def test_latencies_of_days_differ_by_a_nanosecond():
    """Tests sums that are not exact as floats if they are multiplied by a place."""
    draw = random.Random(1)
    count, classes = 90, "abc"
    devices = tuple(Device(name, device_class=name) for name in classes)

    def chain():
        times = [{name: 10**13 + draw.randrange(3) for name in classes} for _ in range(count)]
        operators = [
            Operator(f"u{at}", own, (f"u{at - 1}",) if at else ()) for at, own in enumerate(times)
        ]
        problem = PartitionProblem(operators, devices, objective="latency")
        before = {
            name: list(itertools.accumulate((own[name] for own in times), initial=0))
            for name in classes
        }
        return problem, before

    (least, own), (limited, other) = chain(), chain()
    plans = {
        tuple(
            sum(
                before[name][end] - before[name][start]
                for name, start, end in zip(order, (0, one, two), (one, two, count), strict=True)
            )
            for before in (own, other)
        )
        for order in itertools.permutations(classes)
        for one, two in itertools.combinations_with_replacement(range(count + 1), 2)
    }
    program = LimitedChain(least, limited, [least], ())
    limits = sorted({limit for _, limit in plans})
    for limit in limits:
        best = min(one for one, two in plans if two <= limit)
        assert program.least_latency(UNLIMITED, limit_ns=limit).latency_ns == best


def test_what_it_does_not_do():
    least, limited, held, _ = merged(random_job(0))
    over = Clock.of(SolveLimits(0.001))
    while not over.is_over:
        pass
    with pytest.raises(GaveUp, match="the time limit ran out"):
        LimitedChain(least, limited, held, ()).least_latency(over)
    apart = [
        each.replace(operators=(*each.operators[:-1], replace(each.operators[-1], reads=())))
        for each in (least, limited)
    ]
    with pytest.raises(GaveUp, match="no chain"):
        LimitedChain(*apart, [apart[0]], ())
