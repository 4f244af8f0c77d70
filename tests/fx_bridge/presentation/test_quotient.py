"""What crosses between stages and travels between positions, against graphs read by hand."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from fx_bridge.presentation.quotient import (
    PositionTransfer,
    QuotientArc,
    position_transfers,
    stage_arcs,
)
from solver import (
    Device,
    GraphInput,
    Interconnect,
    Link,
    Operator,
    PartitionPlan,
    PartitionProblem,
    evaluate,
)
from solver.model.training import Backward
from tests.support.random_problems import random_plan, random_problem

SEEDS = st.integers(0, 100_000)


def skipping(**settings):
    """a feeds b and d, b feeds c, c feeds d; values of 1, 10 and 100 bytes."""
    gradient = Backward(gradient_bytes=2)
    return PartitionProblem(
        (
            Operator("a", 1, reads=("x",), value_bytes=1, backward=gradient),
            Operator("b", 1, reads=("a",), value_bytes=10, backward=gradient),
            Operator("c", 1, reads=("b",), value_bytes=100, backward=gradient),
            Operator("d", 1, reads=("c", "a"), value_bytes=1000),
        ),
        (Device("p"), Device("q")),
        inputs=(GraphInput("x", 5),),
        **settings,
    )


def plan(places, chunks=(0, 0, 0, 0)):
    names = "abcd"
    return PartitionPlan(
        dict(zip(names, places, strict=True)),
        tuple(dict.fromkeys(places)),
        dict(zip(names, chunks, strict=True)),
    )


def test_a_device_receives_a_value_once():
    # d reads a too, but q has it since b.
    assert position_transfers(skipping(), plan("pqpq", (0, 0, 1, 1))) == (
        PositionTransfer(0, 1, 1, 0),
        PositionTransfer(1, 2, 10, 0),
        PositionTransfer(2, 3, 100, 0),
    )


def test_relayed_values_travel_from_each_position_to_the_next():
    relayed = Interconnect(Link(10**9), charging="relayed")
    problem = skipping(memory_model="training", interconnect=relayed)
    assert position_transfers(problem, plan("pqpq", (0, 0, 1, 1))) == (
        PositionTransfer(0, 1, 1, 2),
        PositionTransfer(1, 2, 11, 4),
        PositionTransfer(2, 3, 101, 4),
    )
    assert position_transfers(problem, plan("pppp", (0, 0, 1, 1))) == ()


def test_through_the_host_every_value_is_written_once():
    staged = Interconnect(Link(10**9), charging="host_staged")
    assert position_transfers(skipping(interconnect=staged), plan("ppqq")) == (
        PositionTransfer(None, 1, 11, 0),
        PositionTransfer(0, None, 11, 0),
    )


@given(SEEDS, st.booleans())
def test_arcs_are_what_operators_read_from_other_stages(seed, draw_chunks):
    problem = random_problem(seed, draw_chunks=draw_chunks)
    drawn = random_plan(problem, seed, draw_chunks=draw_chunks)
    crossing = defaultdict(set)
    for op in problem.operators:
        for read in set(op.reads) & problem.index_of.keys():
            source, target = drawn.stage_index[read], drawn.stage_index[op.name]
            if source != target:
                crossing[source, target].add(read)
    assert stage_arcs(problem, drawn) == tuple(
        QuotientArc(
            *arc,
            len(names),
            sum(op.value_bytes for op in problem.operators if op.name in names),
            sum(
                op.backward.gradient_bytes
                for op in problem.operators
                if op.name in names and problem.is_training
            ),
        )
        for arc, names in sorted(crossing.items())
    )


@given(SEEDS, st.booleans())
def test_what_travels_adds_up_to_the_transfers_of_the_plan(seed, relayed):
    problem = random_problem(seed, draw_chunks=True, relayed=relayed)
    if problem.interconnect.charging == "host_staged":
        problem = problem.replace(interconnect=Interconnect(Link(10**9)))
    drawn = random_plan(problem, seed, draw_chunks=True)
    found = position_transfers(problem, drawn)
    total = sum(entry.value_bytes + entry.gradient_bytes for entry in found)
    assert total == evaluate(problem, drawn).transfer_bytes
    ranks = len(drawn.device_order)
    assert all(entry.source % ranks != entry.target % ranks for entry in found)
