"""DeepSpeed's partitions against all cuts, and against the examples of its developers."""

import itertools
import random

import numpy as np
import pytest

from experiments.planners.deepspeed import (
    DEEPSPEED_PLANNERS,
    partition_balanced,
    partition_uniform,
)
from experiments.planners.task import PlanningTask
from solver import Device, Operator, PartitionProblem, SolveLimits, Weight


def largest(weights, ends):
    return max(sum(weights[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True))


@pytest.mark.parametrize("seed", range(150))
def test_no_cut_has_a_smaller_largest_sum(seed):
    draws = random.Random(seed)
    count, parts = draws.randint(1, 9), draws.randint(1, 5)
    weights = [draws.choice([0, draws.randint(1, 20)]) for _ in range(count)]
    ends = partition_balanced(np.array(weights), parts)
    assert len(ends) == parts
    assert ends[-1] == count
    cuts = itertools.combinations_with_replacement(range(count + 1), parts - 1)
    assert largest(weights, ends) == min(largest(weights, [*cut, count]) for cut in cuts)


def test_examples_of_deepspeed():
    # Pull requests 4312 and 4053, without the leading 0.
    assert partition_balanced(np.array([1, 1, 1, 1, 1]), 4) == [2, 4, 5, 5]
    assert partition_uniform(38, 8) == [5, 10, 15, 20, 25, 30, 34, 38]


@pytest.mark.parametrize(("count", "parts"), [(1, 4), (4, 4), (7, 3), (12, 5)])
def test_uniform_stages_differ_by_at_most_one_layer(count, parts):
    sizes = np.diff([0, *partition_uniform(count, parts)])
    assert sizes.sum() == count
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(sizes) <= 0).all()


def test_the_planners_differ_where_parameters_are_uneven():
    weights = {"big": Weight(90), "small": Weight(10)}
    operators = (
        Operator("embed", weights=("big",)),
        *(Operator(f"op{i}", reads=("embed",), weights=("small",)) for i in range(3)),
    )
    devices = (Device("x", memory_bytes=95), Device("y", memory_bytes=95))
    problem = PartitionProblem(operators, devices, weights=weights, memory_model="weights")
    answers = {
        spec.name: spec.plan(PlanningTask(problem), SolveLimits()).result
        for spec in DEEPSPEED_PLANNERS
    }
    by_parameters, by_number = answers["deepspeed-parameters"], answers["deepspeed-uniform"]
    assert by_parameters.plan.operators_of("x") == ("embed",)
    assert by_parameters.status.value == "feasible"
    assert by_number.plan.operators_of("x") == ("embed", "op0")
    assert by_number.reason == "device 'x' needs 100 bytes but has 95: 5 too few"
