"""What stages hold while which operators run, on a chain that can be followed by eye."""

import numpy as np

from solver import Device, GraphInput, Operator, PartitionPlan, PartitionProblem, Weight
from solver.evaluation.layout import Layout
from solver.evaluation.stage_memory import (
    StageMemory,
    microbatches_in_flight,
    received_bytes_of,
    weights_bytes_of,
)
from solver.model.training import Backward


def problem(**settings):
    """x -> a -> b -> c -> d, where d reads a too; a, b on p and c, d on q."""
    return PartitionProblem(
        (
            Operator("a", reads=("x",), storage_bytes=1, value_bytes=1, weights=("w",)),
            Operator("b", reads=("a",), storage_bytes=10, value_bytes=10, weights=("w",)),
            Operator("c", reads=("b",), storage_bytes=100, workspace_bytes=7),
            Operator("d", reads=("c", "a"), storage_bytes=1000, weights=("v",)),
        ),
        (Device("p"), Device("q")),
        inputs=(GraphInput("x", 5),),
        weights={"w": Weight(20), "v": Weight(30)},
        **settings,
    )


def layout_of(instance):
    plan = PartitionPlan(dict(zip("abcd", "ppqq", strict=True)), ("p", "q"))
    return Layout(instance, plan)


def memory_of(instance):
    layout = layout_of(instance)
    return StageMemory.of(instance, layout, None)


def test_holdings_have_the_operators_while_which_they_are_held():
    instance = problem()
    memory = memory_of(instance)
    held = {
        (instance.operators[holding.operator].name, holding.kind): (int(start), int(end))
        for number, start, end in zip(memory.held, memory.held_from, memory.held_until, strict=True)
        for holding in [instance.holdings[number]]
    }
    assert held == {
        # Sent, so held until the stage ends.
        ("a", "value"): (0, 2),
        ("b", "value"): (1, 2),
        ("c", "value"): (2, 4),
        ("c", "workspace"): (2, 3),
        ("d", "value"): (3, 4),
    }
    assert memory.live_bytes.tolist() == [1, 11, 107, 1100]
    assert memory.peak_bytes.tolist() == [11, 1100]


def test_what_arrives_counts_once_for_each_stage():
    instance = problem()
    memory, layout = memory_of(instance), layout_of(instance)
    pairs = zip(memory.received.tolist(), memory.received_by.tolist(), strict=True)
    # Graph inputs are numbered after the operators.
    assert sorted(pairs) == [(0, 1), (1, 1), (4, 0)]
    assert memory.received_bytes.tolist() == [5, 11]
    assert received_bytes_of(instance, layout, memory).tolist() == [5, 11]


def test_weights_count_once_for_each_group():
    layout = layout_of(problem())
    assert weights_bytes_of(problem(), layout.stage, layout.order).tolist() == [20, 30]
    one_group = np.zeros_like(layout.stage)
    assert weights_bytes_of(problem(), one_group, layout.order).tolist() == [50]


def test_the_memory_model_of_weights_holds_nothing_else():
    memory = memory_of(problem(memory_model="weights"))
    assert not memory.peak_bytes.any() and not memory.received_bytes.any()
    assert len(memory.held) == len(memory.received) == 0


def test_what_backward_passes_need_is_kept_of_microbatches_in_flight():
    instance = problem(memory_model="training", microbatches=8)
    plan = PartitionPlan(dict(zip("abcd", "ppqq", strict=True)), ("p", "q"))
    assert microbatches_in_flight(instance, plan) == [2, 1]
    kept = Operator(
        "a", reads=("x",), storage_bytes=1, backward=Backward(kept_bytes=1, residual_bytes=6)
    )
    saving = instance.replace(operators=(kept, *instance.operators[1:]))
    assert memory_of(saving).saved_bytes.tolist() == [7, 0]
