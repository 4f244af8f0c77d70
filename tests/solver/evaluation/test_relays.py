"""How values are relayed: small plans worked by hand, and properties of all."""

import pytest

from solver.evaluation.evaluate import evaluate
from solver.evaluation.layout import Layout
from solver.model.devices import Device, Interconnect, Link
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
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


@pytest.mark.parametrize("draw_chunks", [False, True])
def test_hops_carry_values_from_their_producer_to_every_later_reader(draw_chunks):
    relayed = 0
    for seed in range(150):
        problem = random_problem(seed, relayed=True, draw_chunks=draw_chunks)
        plan = random_plan(problem, seed, draw_chunks=draw_chunks)
        layout = Layout(problem, plan)
        hops, position = layout.hops, layout.position[layout.stage]
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
