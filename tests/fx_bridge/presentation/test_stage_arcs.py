"""What crosses between stages, against graphs read by hand."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from fx_bridge.presentation.details import QuotientArc, stage_arcs
from solver import Device, GraphInput, Operator, PartitionPlan, PartitionProblem
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
    assignment, chunk_of = (dict(zip("abcd", each, strict=True)) for each in (places, chunks))
    return PartitionPlan(assignment, tuple(dict.fromkeys(places)), chunk_of)


def test_a_value_counts_once_for_each_stage_that_reads_it():
    interleaved = plan("pqpq", (0, 0, 1, 1))
    assert stage_arcs(skipping(), interleaved) == (
        QuotientArc(0, 1, 1, 1, 0),
        QuotientArc(0, 3, 1, 1, 0),
        QuotientArc(1, 2, 1, 10, 0),
        QuotientArc(2, 3, 1, 100, 0),
    )
    trained = skipping(memory_model="training")
    assert stage_arcs(trained, plan("ppqq")) == (QuotientArc(0, 1, 2, 11, 4),)
    assert stage_arcs(skipping(), plan("pppp")) == ()


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
    expected = []
    for arc, names in sorted(crossing.items()):
        sent = [op for op in problem.operators if op.name in names]
        back_bytes = sum(op.backward.gradient_bytes for op in sent if problem.is_training)
        expected.append(
            QuotientArc(*arc, len(sent), sum(op.value_bytes for op in sent), back_bytes)
        )
    assert stage_arcs(problem, drawn) == (*expected,)
