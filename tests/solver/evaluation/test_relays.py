"""How values are relayed: small plans worked by hand, and properties of all."""

from dataclasses import replace

import numpy as np
import pytest

from solver.evaluation.evaluate import evaluate
from solver.evaluation.relays import positions_of, relay_hops
from solver.model.devices import Device, Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.training import Backward
from tests.support.random_problems import random_plan, random_problem

ONE_BYTE_PER_NS = Link(1_000_000_000)
PQR = (Device("p"), Device("q"), Device("r"))


def skipping(**changes):
    """a -> b -> c with a skip a -> c; a has 1 byte, b 10, and c, the output, 100."""
    operators = (
        Operator("a", 1000, storage_bytes=1, value_bytes=1),
        Operator("b", 2000, ("a",), storage_bytes=10, value_bytes=10),
        Operator("c", 4000, ("a", "b"), storage_bytes=100, value_bytes=100, is_output=True),
    )
    fields = {
        "operators": operators,
        "devices": PQR,
        "interconnect": Interconnect(ONE_BYTE_PER_NS, charging="relayed"),
    }
    return PartitionProblem(**{**fields, **changes})


def judged(problem, order, chunks=None, **devices_of):
    assignment = {name: device for device, names in devices_of.items() for name in names}
    return evaluate(problem, PartitionPlan(assignment, tuple(order), chunks or {}))


def times(evaluation):
    return [(e.compute_ns, e.send_ns, e.receive_ns) for e in evaluation.usage]


def test_a_skipped_device_receives_and_sends_what_it_passes_on():
    evaluation = judged(skipping(), "pqr", p="a", q="b", r="c")
    assert times(evaluation) == [(1000, 1, 0), (2000, 11, 1), (4000, 0, 11)]
    assert evaluation.transfer_bytes == 1 + 11
    assert evaluation.bottleneck_ns == 4011
    assert evaluation.latency_ns == 1001 + 2012 + 4011
    # q holds a until its stage ends, as r does, and what it made.
    assert [entry.memory_bytes for entry in evaluation.usage] == [1, 1 + 10, 11 + 100]


def test_a_value_that_the_graph_returns_travels_to_the_last_position():
    a, b, c = skipping().operators
    problem = skipping(operators=(replace(a, is_output=True), b, replace(c, reads=("b",))))
    evaluation = judged(problem, "pqr", p="a", q="b", r="c")
    assert times(evaluation) == [(1000, 1, 0), (2000, 11, 1), (4000, 0, 11)]
    alone = judged(problem, "pq", p="a", q="bc")
    assert times(alone) == [(1000, 1, 0), (6000, 0, 1), (0, 0, 0)]


def test_positions_without_operators_relay_between_the_chunks():
    # Chunk 0: p runs a, q b; chunk 1: q runs c. The value of b passes p in chunk 1 on the way.
    evaluation = judged(skipping(chunks_per_device=2), "pq", {"c": 1}, p="a", q="bc")
    assert evaluation.feasible
    assert [str(entry.stage) for entry in evaluation.stages] == ["p", "q", "q (chunk 1)"]
    assert times(evaluation)[:2] == [(1000, 1 + 11, 11), (6000, 11, 1 + 11)]
    assert evaluation.transfer_bytes == 1 + 11 + 11
    assert [entry.received_bytes for entry in evaluation.usage[:2]] == [11, 1 + 11]
    assert sum(entry.received_bytes for entry in evaluation.stages) == 1 + 11
    # a, b, what passes through p, c.
    assert evaluation.latency_ns == 1001 + 2012 + 22 + 4011


def test_hops_between_chunks_of_one_device_take_no_time():
    problem = skipping(chunks_per_device=2)
    evaluation = judged(problem, "p", {"b": 1, "c": 1}, p="abc")
    assert times(evaluation)[0] == (7000, 0, 0)
    assert evaluation.transfer_bytes == 0
    assert evaluation.usage[0].received_bytes == 1


def test_each_hop_takes_the_link_between_its_neighbours():
    links = {("p", "q"): Link(None, 3), ("q", "r"): Link(None, 50), ("p", "r"): Link(None, 7000)}
    problem = skipping(interconnect=Interconnect(ONE_BYTE_PER_NS, links, "relayed"))
    evaluation = judged(problem, "pqr", p="a", q="b", r="c")
    assert times(evaluation) == [(1000, 3, 0), (2000, 100, 3), (4000, 0, 100)]


def test_gradients_come_back_over_the_same_borders_the_other_way():
    a, b, c = skipping().operators
    trained = replace(a, backward=Backward(gradient_bytes=7))
    problem = skipping(
        operators=(trained, b, c),
        interconnect=Interconnect(
            ONE_BYTE_PER_NS, {("q", "p"): Link(None, 300), ("r", "q"): Link(None, 500)}, "relayed"
        ),
        memory_model="training",
        microbatches=4,
    )
    evaluation = judged(problem, "pqr", p="a", q="b", r="c")
    assert times(evaluation) == [(1000, 301, 0), (2000, 501 + 10, 301), (4000, 0, 501 + 10)]
    assert evaluation.transfer_bytes == 2 * (1 + 7) + 10
    # For each of four microbatches: the value and, where it is sent, its gradient; one more.
    assert [entry.received_bytes for entry in evaluation.usage] == [28, 4 + 7 + 28, 4 + 7 + 40]
    plan = PartitionPlan({"a": "p", "b": "q", "c": "r"}, ("p", "q", "r"))
    hops = relay_hops(problem, plan)
    assert hops.value.tolist() == [0, 0, 1]
    assert hops.source.tolist() == [0, 1, 1]
    assert hops.forward_ns.tolist() == [1, 1, 10]
    assert hops.gradient_ns.tolist() == [300, 500, 0]


def test_an_operators_own_transfer_time_is_halved_between_value_and_gradient():
    a, b, c = skipping().operators
    trained = replace(a, transfer_ns=9, backward=Backward(gradient_bytes=7))
    problem = skipping(operators=(trained, b, c), memory_model="training")
    plan = PartitionPlan({"a": "p", "b": "q", "c": "q"}, ("p", "q"))
    hops = relay_hops(problem, plan)
    assert (hops.forward_ns[0], hops.gradient_ns[0]) == (5, 4)


def test_no_operator_of_a_backward_pass_is_relayed():
    a, b, c = skipping().operators
    with pytest.raises(PartitionError, match=r"'c'.*forward.*another charging than 'relayed'"):
        skipping(operators=(a, b, replace(c, is_backward=True)), memory_model="weights")


@pytest.mark.parametrize("draw_chunks", [False, True])
def test_hops_carry_values_from_their_producer_to_every_later_reader(draw_chunks):
    relayed = 0
    for seed in range(150):
        problem = random_problem(seed, relayed=True, draw_chunks=draw_chunks)
        plan = random_plan(problem, seed, draw_chunks=draw_chunks)
        hops = relay_hops(problem, plan)
        position = positions_of(problem, plan)
        borders = set(zip(hops.value.tolist(), hops.source.tolist(), strict=True))
        assert len(borders) == len(hops.value)
        needed = set()
        for index, op in enumerate(problem.operators):
            ends = [position[problem.index_of[name]] for name in problem.readers_of[op.name]]
            ends += [hops.position_count - 1] * op.is_output
            needed.update((index, p) for end in ends for p in range(position[index], end))
        assert borders == needed
        relayed += len(needed)
    assert relayed


def test_the_parts_of_a_transfer_add_up():
    for seed in range(100):
        problem = random_problem(seed, relayed=True, memory_model="training")
        arrays = problem.arrays
        everything = np.arange(len(problem.operators))
        link, back = Link(2_000_000_000, 3), Link(700_000_000, 5)
        parts = arrays.transfer_parts_ns(everything, link, back)
        assert (sum(parts) == arrays.transfer_ns(everything, link, back)).all()
        assert ((parts[1] > 0) <= (arrays.gradient_bytes > 0)).all()
