"""What is alive at a peak: the evaluator's number by name, with nothing left over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fx_bridge.presentation.alive import Alive, alive_at_peak
from solver import (
    Device,
    GraphInput,
    Interconnect,
    Link,
    Operator,
    PartitionError,
    PartitionPlan,
    PartitionProblem,
    Weight,
    evaluate,
)
from solver.model.training import Backward
from tests.support.random_problems import random_plan, random_problem

SEEDS = st.integers(0, 100_000)


def alive(problem, places, chunks=None):
    """What each device holds under a plan given as one device name per operator."""
    names = [op.name for op in problem.operators]
    assignment = dict(zip(names, places, strict=True))
    chunk_of = dict(zip(names, chunks or [0] * len(names), strict=True))
    plan = PartitionPlan(assignment, tuple(dict.fromkeys(places)), chunk_of)
    found = alive_at_peak(problem, plan)
    usage = evaluate(problem, plan).usage
    assert [sum(e.size_bytes for e in entries) for entries in found] == [
        entry.memory_bytes for entry in usage
    ]
    return found


def chain(**settings):
    """x -> a -> b -> c, of 1, 10, 100 and 1000 bytes; a and c read the weight w."""
    return PartitionProblem(
        (
            Operator("a", reads=("x",), storage_bytes=10, value_bytes=10, weights=("w",)),
            Operator("b", reads=("a",), storage_bytes=100, value_bytes=100, workspace_bytes=5),
            Operator("c", reads=("b",), storage_bytes=1000, is_output=True, weights=("w",)),
        ),
        (Device("p"), Device("q")),
        inputs=(GraphInput("x", 1),),
        weights={"w": Weight(7)},
        **settings,
    )


def test_inference_holds_weights_what_arrives_and_what_lives():
    on_p, on_q = alive(chain(), "ppq")
    # At b: its value, the one that it reads, and its workspace.
    assert on_p == (
        Alive("b", "value", 100),
        Alive("a", "value", 10),
        Alive("w", "weight", 7),
        Alive("b", "workspace", 5),
        Alive("x", "received", 1),
    )
    assert on_q == (
        Alive("c", "value", 1000),
        Alive("b", "received", 100),
        Alive("w", "weight", 7),
    )


def test_training_keeps_earlier_microbatches_and_gradients():
    backward = Backward(gradient_bytes=8, kept_bytes=5, residual_bytes=2, workspace_bytes=1)
    problem = PartitionProblem(
        (
            Operator("a", storage_bytes=8, value_bytes=8, backward=backward),
            Operator("b", reads=("a",), backward=Backward()),
        ),
        (Device("p"), Device("q")),
        memory_model="training",
        microbatches=4,
        schedule="gpipe",
    )
    on_p, on_q = alive(problem, "pq")
    assert on_p == (
        Alive("a", "gradient", 8 + 4 * 8),
        Alive("a", "earlier", 3 * 7),
        Alive("a", "sent", 4 * 3 + 5),
        Alive("a", "saved", 7),
        Alive("a", "workspace", 1),
    )
    assert on_q == (Alive("a", "received", 4 * 8 + 8),)


def test_a_device_in_between_holds_what_it_passes_on():
    problem = PartitionProblem(
        (
            Operator("a", storage_bytes=8, value_bytes=8),
            Operator("b", storage_bytes=1),
            Operator("c", reads=("a",), storage_bytes=2),
        ),
        (Device("p"), Device("q"), Device("r")),
        interconnect=Interconnect(Link(10**9), charging="relayed"),
    )
    _, on_q, on_r = alive(problem, "pqr")
    assert on_q == (Alive("a", "received", 8), Alive("b", "value", 1))
    assert on_r == (Alive("a", "received", 8), Alive("c", "value", 2))


@given(SEEDS, st.booleans(), st.booleans())
def test_the_sizes_add_up_to_what_the_evaluator_says(seed, draw_chunks, relayed):
    problem = random_problem(seed, draw_chunks=draw_chunks, relayed=relayed)
    plan = random_plan(problem, seed, draw_chunks=draw_chunks)
    for entries, usage in zip(
        alive_at_peak(problem, plan), evaluate(problem, plan).usage, strict=True
    ):
        assert sum(entry.size_bytes for entry in entries) == usage.memory_bytes
        assert all(entry.size_bytes > 0 for entry in entries)
        assert len({(entry.name, entry.kind) for entry in entries}) == len(entries)
        assert [entry.size_bytes for entry in entries] == sorted(
            (entry.size_bytes for entry in entries), reverse=True
        )
        by_kind = dict.fromkeys(("weight", "earlier"), 0)
        for entry in entries:
            by_kind[entry.kind] = by_kind.get(entry.kind, 0) + entry.size_bytes
        assert by_kind["weight"] == usage.weights_bytes
        assert by_kind["earlier"] == usage.saved_bytes
        running = {entry.name for entry in entries if entry.kind == "workspace"}
        assert running <= set(usage.operators)
        if len(plan.stages) == len(plan.device_order) and running:
            assert running == {usage.peak_operator}


def test_a_plan_must_be_total():
    plan = PartitionPlan({"a": "p"}, ("p",))
    with pytest.raises(PartitionError, match="no device for operator 'b'"):
        alive_at_peak(chain(), plan)
