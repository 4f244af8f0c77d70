"""Formulas for steps of pipelines against simulations."""

import itertools
import random

import pytest

from solver.evaluation.step_bounds import step_bound_ns
from solver.evaluation.timeline import PipelineTimes, timeline
from solver.model.schedules import action_tables
from tests.support.random_pipelines import random_settings, random_times


@pytest.mark.parametrize("seed", range(4))
def test_no_step_is_shorter_than_its_bound_and_many_are_as_short(seed):
    rng = random.Random(seed)
    met = 0
    for _ in range(100):
        chosen = random_settings(rng)
        tables = action_tables(**chosen)
        devices, count = chosen["devices"], chosen["devices"] * chosen["chunks"]
        is_chain = rng.random() < 0.5
        pairs = [
            (s, t)
            for s, t in itertools.combinations(range(count), 2)
            if (t == s + 1 if is_chain else rng.random() < 0.4)
        ]
        arcs = {(s, t): random_times(rng, 2) if (t - s) % devices else (0, 0) for s, t in pairs}
        compute = [random_times(rng, count) for _ in range(2)]
        times = PipelineTimes(*compute, arcs, overlap=rng.random() < 0.5)
        step_ns = timeline(tables, times).step_ns
        bound_ns = step_bound_ns(
            times, chosen["microbatches"], devices=devices, backward=chosen["backward"]
        )
        assert bound_ns <= step_ns
        met += bound_ns == step_ns
    assert met >= 30
