"""Several operator graphs as one problem."""

import random

import pytest

from solver import (
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionError,
    PartitionPlan,
    PartitionProblem,
    Weight,
    evaluate,
)
from solver.model.job import Job
from solver.serving.metrics import evaluate_phases
from tests.support.problem_counts import some
from tests.support.random_jobs import PROMPT, TOKEN, random_job


def plan_of(problem, rng):
    """A random plan that keeps units together, contiguous in execution order."""
    cut = rng.randint(0, len(problem.units))
    names = [device.name for device in rng.sample(problem.devices, 2)]
    place = {
        name: names[number >= cut] for number, unit in enumerate(problem.units) for name in unit
    }
    return PartitionPlan.from_assignment(
        problem, {op.name: place[op.name] for op in problem.operators}
    )


@pytest.mark.parametrize("seed", some(30, of=30))
def test_times_add_up_and_memory_is_that_of_one_phase(seed):
    rng = random.Random(seed)
    job = random_job(seed, memory_model="inference")
    runs = {PROMPT: rng.randint(0, 3), TOKEN: rng.randint(1, 9)}
    for holds in (PROMPT, TOKEN):
        merged = job.merged(runs, holds)
        plan = plan_of(merged, rng)
        found = evaluate_phases(job, plan)
        together = evaluate(merged, plan)
        assert together.latency_ns == sum(n * found[name].latency_ns for name, n in runs.items())
        for own, other in zip(together.usage, found[holds].usage, strict=True):
            assert own.memory_bytes == other.memory_bytes
            assert own.compute_ns == sum(
                n * e.compute_ns
                for name, n in runs.items()
                for e in found[name].usage
                if e.device == own.device
            )


def test_the_plan_of_a_phase_keeps_modes_and_chunks_of_its_operators():
    job = random_job(1)
    names = [op.name for op in job.merged({TOKEN: 1}, TOKEN).operators]
    chunks, modes = dict.fromkeys(names, 2), dict.fromkeys(names[::2], "streamed")
    plan = PartitionPlan(dict.fromkeys(names, "gpu0"), ("gpu0",), chunks, mode_of=modes)
    for phase, problem in job.phases.items():
        own = job.plan_of(phase, plan)
        assert own.mode_of == {name: modes[name] for name in problem.index_of if name in modes}
        assert not own.chunks, "the first chunk in use is 0"


@pytest.mark.parametrize("seed", range(10))
def test_caches_of_several_groups_are_merged_as_if_phases_were_made_anew(seed):
    serving = random_job(seed, memory_model="inference")
    runs = {PROMPT: 1, TOKEN: 2}
    for groups in (1, 3, 2):
        job = serving.with_groups(groups)
        for holds in (PROMPT, TOKEN):
            assert job.merged(runs, holds) == job.replace().merged(runs, holds)


def problem(*operators, **settings):
    devices = [Device("a"), Device("b")]
    return PartitionProblem(operators, devices, weights={"w": Weight(1)}, **settings)


def test_what_passes_in_some_phases_only_stays_on_one_device():
    long = problem(
        Operator("x", value_bytes=4), Operator("copy", 0, ("x",)), Operator("y", 0, ("copy",))
    )
    short = problem(Operator("x", value_bytes=1), Operator("y", 0, ("x",)))
    merged = Job({"long": long, "short": short}, "short").merged({"long": 1}, "long")
    assert merged.units == (("x", "copy", "y"),)


def test_links_that_differ_carry_the_bytes_of_all_runs():
    links = {("a", "b"): Link(10**9, 3)}
    settings = {"interconnect": Interconnect(links=links)}
    job = Job(
        {
            "long": problem(Operator("x", value_bytes=40), Operator("y", 0, ("x",)), **settings),
            "short": problem(Operator("x", value_bytes=8), Operator("y", 0, ("x",)), **settings),
        },
        "short",
    )
    merged = job.merged({"long": 2, "short": 5}, "long")
    plan = PartitionPlan({"x": "a", "y": "b"}, ("a", "b"))
    assert evaluate(merged, plan).usage[0].send_ns == 2 * (40 + 3) + 5 * (8 + 3)
    assert evaluate(merged, plan).usage[1].received_bytes == 40


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({}, "there are no phases"),
        ({"b": {"memory_model": "weights"}}, "phases 'a' and 'b' differ in memory_model"),
        ({"b": {"memory_model": "training"}}, "phase 'b' trains or has microbatches"),
        ({"b": {"microbatches": 2}}, "phase 'b' trains or has microbatches"),
    ],
)
def test_phases_that_do_not_go_together(others, message):
    own = {"a": problem(Operator("x"))} if others else {}
    with pytest.raises(PartitionError, match=message):
        Job({**own, **{name: problem(Operator("x"), **s) for name, s in others.items()}}, "a")


def test_operators_have_one_order():
    first = problem(Operator("x"), Operator("y"))
    with pytest.raises(PartitionError, match="runs 'x' before 'y', and phase 'b' after"):
        Job({"a": first, "b": problem(Operator("y"), Operator("x"))}, "a")


@pytest.mark.parametrize("runs", [{}, {"a": 0}, {"a": -1}, {"c": 1}])
def test_runs_that_say_nothing(runs):
    with pytest.raises(PartitionError, match=r"runs are|there is no phase 'c'"):
        Job({"a": problem(Operator("x"))}, "a").merged(runs, "a")
