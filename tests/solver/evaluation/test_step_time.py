"""The time of steps of many microbatches against simulations of every event, and formulas."""

import itertools
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
    action_tables,
    evaluate,
)
from solver.evaluation import step_time
from solver.evaluation.step import PipelineStep
from solver.evaluation.step_time import step_time_ns
from solver.evaluation.timeline import PipelineTimes
from solver.model import schedules
from solver.model.training import Backward
from tests.support.random_pipelines import gpipe_step_ns, random_times


def random_step(rng):
    """A pipeline of any kind, with many times that are 0 or equal."""
    devices = rng.randint(1, 4)
    chunks = rng.randint(1, 3)
    count = devices * chunks
    most = rng.choice([1, 3, 30, 10**6])
    compute = [random_times(rng, count, most) for _ in range(2)]
    share = rng.choice([0.1, 0.4, 1, None])
    pairs = [
        (s, t)
        for s, t in itertools.combinations(range(count), 2)
        if (t == s + 1 if share is None else rng.random() < share)
    ]
    arcs = dict.fromkeys(pairs, (0, 0))
    staged = {}
    if rng.random() < 0.3:
        staged = {p: random_times(rng, 4, most) for p in range(count)}
    else:
        arcs |= {arc: random_times(rng, 2, most) for arc in pairs if (arc[1] - arc[0]) % devices}
    return PipelineStep(
        PipelineTimes(*compute, arcs, staged, overlap=rng.random() < 0.5),
        rng.choice(["gpipe", "1f1b"]),
        rng.randint(1, 60),
        devices,
        rng.random() < 0.7,
    )


@pytest.mark.parametrize("seed", range(4))
def test_steps_take_as_long_as_the_simulation_of_all_events(seed, monkeypatch):
    powers = []
    original = step_time._Columns._powers

    def counted(self, column, repeats):
        powers.append(repeats)
        return original(self, column, repeats)

    monkeypatch.setattr(step_time._Columns, "_powers", counted)
    rng = random.Random(seed)
    for _ in range(60):
        step = random_step(rng)
        simulated = step.timeline()
        assert step.step_ns == simulated.step_ns
        assert step.busy_ns == simulated.busy_ns
    # Most of them leave columns out.
    assert len(powers) > 35


@pytest.mark.parametrize("microbatches", [10**5, 10**9, 10**9 + 7, 10**18])
def test_a_thousand_million_microbatches_take_what_the_formula_says(microbatches):
    rng = random.Random(microbatches)
    for overlap in (False, True):
        arcs = {(p, p + 1): random_times(rng, 2) for p in range(3)}
        compute = [random_times(rng, 4) for _ in range(2)]
        times = PipelineTimes(*compute, arcs, overlap=overlap)
        found = step_time_ns(times, "gpipe", microbatches, devices=4)
        assert found == gpipe_step_ns(times, microbatches)
    equal = PipelineTimes((10,) * 8, (20,) * 8, {(p, p + 1): (0, 0) for p in range(7)})
    whole = microbatches // 4 * 4
    for schedule in ("gpipe", "1f1b"):
        assert step_time_ns(equal, schedule, whole, devices=4) == 30 * (2 * whole + 3)


def chain_problem(memory_model="training", **settings):
    operators = [
        Operator("a", 10, value_bytes=3, backward=Backward(20, gradient_bytes=2)),
        Operator("b", 10, reads=("a",), value_bytes=3, backward=Backward(20)),
    ]
    return PartitionProblem(
        tuple(operators),
        (Device("x"), Device("y")),
        objective="step",
        memory_model=memory_model,
        interconnect=Interconnect(Link(10**9), charging="relayed"),
        **settings,
    )


def test_the_evaluator_needs_no_list_of_events():
    plan = PartitionPlan({"a": "x", "b": "y"}, ("x", "y"))
    few, many = (evaluate(chain_problem(microbatches=m), plan) for m in (5, 10**9))
    # Either device spends 30 ns and the transfer of 3, and its gradient's of 2, each time.
    assert many.objective == (many.step_ns,) == (few.step_ns + (10**9 - 5) * 35,)
    with pytest.raises(PartitionError, match="has 4,000,000,000 actions, of which at most"):
        many.step.timeline()


def test_lists_of_actions_have_a_largest_length(monkeypatch):
    monkeypatch.setattr(schedules, "MOST_ACTIONS", 24)
    assert sum(map(len, action_tables("gpipe", 6, devices=2))) == 24
    assert sum(map(len, action_tables("gpipe", 12, devices=2, backward=False))) == 24
    with pytest.raises(PartitionError, match="has 28 actions, of which at most 24 are listed"):
        action_tables("gpipe", 7, devices=2)


def test_steps_that_64_bits_cannot_hold_are_refused():
    with pytest.raises(PartitionError) as error:
        chain_problem("weights", microbatches=10**14)
    assert "microbatches is 100000000000000, and a step of all of them may take" in str(error.value)
    most = int(str(error.value).rsplit("at most ", 1)[1])
    assert chain_problem("weights", microbatches=most).microbatches == most
    with pytest.raises(PartitionError, match="may take more than"):
        chain_problem("weights", microbatches=most + 1)


def test_groups_of_another_size_keep_the_order_of_the_full_step():
    # 19 microbatches on 3 devices pass in groups of 4, but 5 alone in one of 5.
    for chunks in (2, 3):
        full = action_tables("1f1b", 19, devices=3, chunks=chunks)
        short = action_tables("1f1b", 5, devices=3, chunks=chunks, group=4)
        for long_table, table in zip(full, short, strict=True):
            ahead = [a for a in long_table if a.kind == "forward" and a.microbatch < 5]
            assert [a for a in table if a.kind == "forward"] == ahead
