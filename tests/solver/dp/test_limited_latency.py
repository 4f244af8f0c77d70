"""The least latency with a limit on another one, against all plans of chains."""

from dataclasses import replace

import pytest

from solver import Interconnect, Link
from solver.dp.limited_latency import least_limited_latency
from solver.dp.sweep import GaveUp
from solver.evaluation.evaluate import evaluate
from solver.model.clock import UNLIMITED, Clock
from solver.model.limits import SolveLimits
from solver.model.plan import PartitionPlan
from solver.serving.phases import Phases
from tests.support.serving_cases import PROMPT, TOKEN, Listed, random_case, with_uneven_prompt

FAR_NS = 10**12
"""No latency is as large."""


def merged(serving):
    """The latency of a token, that of the prompt, and what each phase holds."""
    phases, runs = serving.phases, {TOKEN: 1}
    return (
        phases.merged(runs, TOKEN),
        phases.merged(serving.prompt_runs, TOKEN),
        [phases.merged(runs, name) for name in (PROMPT, TOKEN)],
    )


def changed(serving, **settings):
    """The case with other settings in all phases."""
    problems = {name: each.replace(**settings) for name, each in serving.phases.problems.items()}
    return replace(serving, phases=Phases(problems))


def latencies(serving):
    """Both latencies of all plans that fit all phases, by the evaluator."""
    least, limited, held = merged(serving)
    listed = Listed(serving)
    found = set()
    for places in listed.plans():
        on = dict(zip(listed.units, places, strict=True))
        names = [op.name for op in least.operators]
        assignment = {name: on[name.replace("extra", "op")].name for name in names}
        plan = PartitionPlan(assignment, tuple(dict.fromkeys(place.name for place in places)))
        if all(evaluate(problem, plan).feasible for problem in held):
            found.add((evaluate(least, plan).latency_ns, evaluate(limited, plan).latency_ns))
    return found


def reading_twice(serving):
    """The case in which units also read from the one before the one before."""

    def also(operators):
        for op in operators:
            number = int(op.name.removeprefix("op")) if op.name.startswith("op") else 0
            yield replace(op, reads=(*op.reads, f"op{number - 2}")) if number > 1 else op

    problems = {
        name: each.replace(operators=tuple(also(each.operators)))
        for name, each in serving.phases.problems.items()
    }
    return replace(serving, phases=Phases(problems))


SETTINGS = {
    "as it is": {},
    "two devices": {"max_devices": 2},
    "overlap": {"interconnect": Interconnect(Link(10**9, 3), charging="host_staged", overlap=True)},
    "host staged": {"interconnect": Interconnect(Link(10**9, 3), charging="host_staged")},
    "relayed": {"interconnect": Interconnect(Link(10**9, 3), charging="relayed")},
}


@pytest.mark.parametrize("memory_model", ["weights", "inference"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("readers", [1, 2])
def test_it_equals_all_plans_listed(settings, memory_model, readers):
    limits_that_matter = 0
    for seed in range(12):
        serving = changed(
            with_uneven_prompt(random_case(seed, memory_model=memory_model), seed), **settings
        )
        if readers > 1:
            serving = reading_twice(serving)
        problems = merged(serving)
        plans = latencies(serving)
        times = sorted({limited for _, limited in plans})
        for limit in [*([times[0] - 1] if times else []), *times, FAR_NS]:
            best = min((least for least, limited in plans if limited <= limit), default=None)
            found = least_limited_latency(*problems, limit, UNLIMITED)
            limits_that_matter += best is not None and best > min(plans)[0]
            if best is None:
                assert found is None, seed
                continue
            assert found.latency_ns == best == evaluate(problems[0], found.plan).latency_ns, seed
            assert evaluate(problems[1], found.plan).latency_ns <= limit
            assert all(evaluate(problem, found.plan).feasible for problem in problems[2])
    assert limits_that_matter > 5


def test_what_it_does_not_do():
    least, limited, held = merged(random_case(1))
    over = Clock.of(SolveLimits(0.001))
    while not over.is_over:
        pass
    with pytest.raises(GaveUp, match="the time limit ran out"):
        least_limited_latency(least, limited, held, FAR_NS, over)
    apart = [
        each.replace(operators=(*each.operators[:-1], replace(each.operators[-1], reads=())))
        for each in (least, limited)
    ]
    with pytest.raises(GaveUp, match="no chain"):
        least_limited_latency(*apart, [apart[0]], FAR_NS, UNLIMITED)
