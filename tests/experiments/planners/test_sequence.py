"""What balancers are told of a model's layers, against definitions written out."""

import itertools

import pytest

from experiments.planners.sequence import LayerSequence
from solver import ColocationGroup, Device, Operator, PartitionProblem, Weight
from tests.support.problem_counts import some
from tests.support.random_problems import random_problem


def chain(**settings):
    operators = (
        Operator("a", 3, value_bytes=10, storage_bytes=10, weights=("w",)),
        Operator("b", 5, ("a",), value_bytes=20, storage_bytes=20, weights=("v", "w")),
        Operator("c", 7, ("b",), value_bytes=40, storage_bytes=40),
        Operator("d", 9, ("a", "c"), value_bytes=80, storage_bytes=80, weights=("v",)),
    )
    weights = {"w": Weight(100, 400), "v": Weight(1000)}
    devices = (Device("x"), Device("y"), Device("z"))
    return PartitionProblem(operators, devices, weights=weights, **settings)


def test_layers_of_a_small_model():
    layers = LayerSequence.of(chain())
    assert layers.time_ns.tolist() == [3, 5, 7, 9]
    assert layers.activation_bytes.tolist() == [10, 20, 40, 80]
    # Tied weights count in every layer that reads them.
    assert layers.weight_bytes.tolist() == [100, 1100, 0, 1000]
    # The value of a is still to be read after b and after c.
    assert layers.crossing_bytes.tolist() == [0, 10, 30, 50]
    assert layers.stage_count == 3


def test_training_counts_optimiser_state_but_not_as_parameters():
    layers = LayerSequence.of(chain(memory_model="training"))
    assert layers.weight_bytes.tolist() == [400, 1400, 0, 1000]
    assert layers.parameter_bytes.tolist() == [100, 1100, 0, 1000]


def test_operators_that_share_a_device_are_one_layer():
    layers = LayerSequence.of(chain(colocation=(ColocationGroup(("b", "d")),)))
    # c is between them, so that it is of their layer too.
    assert layers.time_ns.tolist() == [3, 21]
    assert layers.parameter_bytes.tolist() == [100, 1100]
    assert layers.plan([1, 2]).assignment == {"a": "x", "b": "y", "c": "y", "d": "y"}


def test_no_more_stages_than_devices_may_be_used():
    assert LayerSequence.of(chain(max_devices=2)).stage_count == 2


def test_a_stage_without_layers_leaves_its_device_out():
    layers = LayerSequence.of(chain())
    plan = layers.plan([0, 3, 4])
    assert plan.device_order == ("y", "z")
    assert plan.operators_of("y") == ("a", "b", "c")
    assert layers.plan([1, 4], ["z", "x"]).device_order == ("z", "x")


@pytest.mark.parametrize("seed", some(40, of=40))
def test_what_crosses_a_cut(seed):
    """The values made before a cut and read behind it, each once, and in training gradients."""
    problem = random_problem(seed, max_operators=12)
    layers = LayerSequence.of(problem)
    place = layers.units.unit_of_operator
    crossing = [0] * len(layers)
    for cut, op in itertools.product(range(1, len(layers)), problem.operators):
        made = place[problem.index_of[op.name]]
        read = [place[problem.index_of[name]] for name in problem.readers_of[op.name]]
        if made < cut <= max(read, default=-1):
            crossing[cut] += op.value_bytes
            crossing[cut] += op.backward.gradient_bytes if problem.is_training else 0
    assert layers.crossing_bytes.tolist() == crossing
