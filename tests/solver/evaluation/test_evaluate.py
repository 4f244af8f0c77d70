from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.evaluation.evaluate import evaluate, stage_memory_bytes
from solver.evaluation.layout import Layout
from solver.model.devices import Device, Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ColocationGroup, Weight
from solver.model.training import Backward
from tests.support import graphs
from tests.support.random_problems import random_plan, random_problem

ONE_BYTE_PER_NS = Link(1_000_000_000)
PQ = (Device("p"), Device("q"))

SEEDS = st.integers(0, 100_000)


def judged(problem, **devices_of):
    """The evaluation of a plan given as p="ab", q="cd"."""
    assignment = {name: device for device, names in devices_of.items() for name in names}
    return evaluate(problem, PartitionPlan.from_assignment(problem, assignment))


def usage(evaluation, device):
    return next(entry for entry in evaluation.usage if entry.device == device)


# -- memory models ------------------------------------------------------------------------------


def weighted(**changes):
    a, b, c, d = graphs.chain().operators
    operators = (
        replace(a, weights=("w", "v"), backward=Backward(residual_bytes=100_000)),
        replace(b, weights=("w",), backward=Backward(residual_bytes=200_000)),
        replace(c, weights=("w",), backward=Backward(residual_bytes=200_000)),
        replace(d, backward=Backward(residual_bytes=400_000)),
    )
    fields = {
        "operators": operators,
        "weights": {"w": Weight(10_000, 40_000), "v": Weight(20_000)},
    }
    return graphs.chain(**{**fields, **changes})


def test_peak_operator_is_the_first_of_equals():
    operators = tuple(Operator(name, storage_bytes=4) for name in "abc")
    assert judged(graphs.chain(operators=operators), p="abc").usage[0].peak_operator == "a"
    assert judged(graphs.chain(), p="abcd").usage[0].peak_operator == "d"
    assert judged(graphs.chain(), p="abcd").usage[1].peak_operator is None


# -- time and transfers -------------------------------------------------------------------------


def fan_out(**changes):
    """a feeds b on q and c on r; bytes and nanoseconds are equal on the default link."""
    operators = (
        Operator("a", 100, value_bytes=10),
        Operator("b", 200, ("a",), value_bytes=20),
        Operator("c", 400, ("a", "b")),
        Operator("d", 800, ("a",)),
    )
    fields = {
        "operators": operators,
        "devices": (Device("p"), Device("q"), Device("r")),
        "interconnect": Interconnect(default=ONE_BYTE_PER_NS),
    }
    return PartitionProblem(**{**fields, **changes})


def times(evaluation):
    return [(e.compute_ns, e.send_ns, e.receive_ns, e.load_ns) for e in evaluation.usage]


def test_peer_to_peer_pays_one_send_and_one_receive_per_consuming_device():
    evaluation = judged(fan_out(), p="a", q="b", r="cd")
    assert times(evaluation) == [(100, 20, 0, 120), (200, 20, 10, 230), (1200, 0, 30, 1230)]
    assert evaluation.feasible and evaluation.violations == ()
    assert evaluation.transfer_bytes == 10 + 10 + 20
    assert evaluation.bottleneck_ns == 1230
    assert evaluation.latency_ns == 120 + 230 + 1230
    assert evaluation.devices_used == 3


def test_host_staged_pays_one_write_and_one_read_per_consuming_device():
    interconnect = Interconnect(default=ONE_BYTE_PER_NS, charging="host_staged")
    evaluation = judged(fan_out(interconnect=interconnect), p="a", q="b", r="cd")
    assert times(evaluation) == [(100, 10, 0, 110), (200, 20, 10, 230), (1200, 0, 30, 1230)]
    assert evaluation.transfer_bytes == 40


def test_a_skipped_device_receives_and_sends_what_it_passes_on():
    """a feeds b, and c beyond it, which is the output."""
    relayed = Interconnect(ONE_BYTE_PER_NS, charging="relayed")
    problem = graphs.chain("abc", of={"c": {"reads": ("a", "b")}}, interconnect=relayed)
    evaluation = judged(problem.replace(devices=[*map(Device, "pqr")]), p="a", q="b", r="c")
    assert [entry[:3] for entry in times(evaluation)] == [(1, 1, 0), (2, 11, 1), (4, 0, 11)]
    assert evaluation.transfer_bytes == 1 + 11
    assert evaluation.bottleneck_ns == 15
    assert evaluation.latency_ns == 2 + 14 + 15
    # q holds a until its stage ends, as r does, and what it made.
    assert [entry.memory_bytes for entry in evaluation.usage] == [1, 1 + 10, 11 + 100]


def test_objectives_come_in_the_order_of_the_problem():
    names = ("devices", "transfer", "bottleneck", "latency", "peak_memory")
    evaluation = judged(fan_out(objective=names), p="a", q="b", r="cd")
    assert evaluation.objective == (3, 40, 1230, 1580, 0)
    for name, value in zip(names, evaluation.objective, strict=True):
        assert evaluation.value(name) == value
        assert judged(fan_out(objective=name), p="a", q="b", r="cd").objective == (value,)


# -- violations ---------------------------------------------------------------------------------


def test_memory_is_exceeded_by_the_last_byte():
    full = weighted(devices=(Device("p", 30_011), Device("q", 11_110)))
    assert judged(full, p="ab", q="cd").feasible
    short = weighted(devices=(Device("p", 30_010), Device("q", 11_110)))
    assert judged(short, p="ab", q="cd").violations == (
        "device 'p' needs 30,011 bytes but has 30,010: 1 too few",
    )


def test_a_cycle_names_its_devices():
    (sentence,) = judged(fan_out(), p="ac", q="b", r="d").violations
    assert sentence in [f"the stages form a cycle: {c}" for c in ("p -> q -> p", "q -> p -> q")]


def test_stages_in_the_wrong_order_are_named():
    plan = PartitionPlan({"a": "p", "b": "p", "c": "q", "d": "q"}, ("q", "p"))
    assert evaluate(fan_out(), plan).violations == (
        "device 'p' sends to 'q', which is an earlier stage",
    )


def chunked(problem, chunks, order, **places):
    """Return the evaluation of a plan with an order of devices and chunks by operator."""
    assignment = {name: device for device, names in places.items() for name in names}
    plan = PartitionPlan(
        assignment, tuple(order), {name: c for c, names in chunks for name in names}
    )
    return evaluate(problem, plan)


def test_chunks_of_a_device_add_up_and_share_weights():
    saves = Backward(residual_bytes=100_000)
    problem = PartitionProblem(
        operators=(
            Operator("a", 1, storage_bytes=1, value_bytes=1, weights=("w",), backward=saves),
            Operator("b", 10, ("a",), storage_bytes=10, value_bytes=10),
            Operator("c", 100, ("a", "b"), 100, weights=("w",), backward=saves, is_output=True),
        ),
        devices=(Device("p"), Device("q")),
        weights={"w": Weight(1_000, 10_000)},
        memory_model="training",
        microbatches=8,
        chunks_per_device=2,
        interconnect=Interconnect(Link(1_000_000_000)),
        objective=("bottleneck", "transfer", "latency"),
    )
    evaluation = chunked(problem, [(1, "c")], "pq", p="ac", q="b")
    assert evaluation.feasible
    p, q = evaluation.usage
    # Chunk 0 holds its value; chunk 1 receives both values, one of them from the same device.
    assert (p.weights_bytes, p.received_bytes) == (10_000, 8 * 11)
    # Interleaved: rounds of two microbatches, four forward steps to warm up on p and two on q.
    assert [entry.in_flight for entry in evaluation.stages] == [4, 3, 2]
    assert p.saved_bytes == (3 + 1) * 100_000
    # Both chunks have one microbatch more, and what they send or return for all eight.
    assert p.memory_bytes == 410_088 + 100_001 + 8 + 100_100 + 800
    assert p.operators == ("a", "c")
    # While a runs, c is at its peak for another microbatch.
    assert p.timeline_bytes == (610_997, 610_997)
    assert q.memory_bytes == 8 * 1 + 10 + 8 * 10
    # Nothing travels from p to p: a's value goes to q, b's to p.
    assert evaluation.objective == (101 + 1 + 10, 11, 1 + 1 + 1 + 10 + 10 + 10 + 100)
    assert [entry.time_ns for entry in evaluation.stages] == [2, 21, 110]


def test_too_many_chunks_and_devices_are_named():
    problem = fan_out(
        max_devices=1, colocation=(ColocationGroup(("b", "c"), "they mutate a cache"),)
    )
    assert chunked(problem, [(1, "cd")], "pq", p="a", q="bcd").violations == (
        "the plan has 2 chunks per device, but at most 1 may be used",
        "the plan uses 2 devices, but may use 1 at most",
        "operators 'b' and others must share a stage (they mutate a cache) but are in chunks 0, 1",
    )
    back = chunked(problem.replace(chunks_per_device=2), [(1, "a")], "p", p="abcd").violations
    assert back[0] == "stage 'p (chunk 1)' sends to 'p', which is an earlier stage"


def test_pins_and_colocation_are_named():
    a, *others = fan_out().operators
    problem = fan_out(
        operators=(replace(a, allowed_devices={"q"}), *others),
        colocation=(ColocationGroup(("b", "c", "d"), "they mutate a cache"),),
    )
    assert judged(problem, p="a", q="b", r="cd").violations == (
        "operator 'a' may not run on device 'p'",
        "operators 'b' and others must share a device (they mutate a cache) but are on q, r",
    )


@pytest.mark.parametrize(
    "assignment", [{"a": "p"}, dict.fromkeys("abcd", "z"), dict.fromkeys("abcde", "p")]
)
def test_a_plan_of_another_problem_is_refused(assignment):
    with pytest.raises(PartitionError):
        evaluate(fan_out(), PartitionPlan(assignment, tuple(dict.fromkeys(assignment.values()))))


# -- invariants ---------------------------------------------------------------------------------


@given(SEEDS, st.integers(0, 20))
def test_the_peak_is_the_maximum_of_the_timeline_and_its_parts_add_up(seed, plan_seed):
    problem = random_problem(seed)
    evaluation = evaluate(problem, random_plan(problem, plan_seed))
    for entry in evaluation.usage:
        assert entry.memory_bytes == max(entry.timeline_bytes, default=0)
        constant = entry.weights_bytes + entry.received_bytes + entry.saved_bytes
        assert all(held >= constant for held in entry.timeline_bytes)
        if entry.operators:
            peak_step = entry.operators.index(entry.peak_operator)
            assert entry.timeline_bytes[peak_step] == entry.memory_bytes
        else:
            assert entry.memory_bytes == entry.load_ns == 0
    assert sum(len(entry.operators) for entry in evaluation.usage) == len(problem.operators)


@given(SEEDS, st.integers(0, 20))
def test_the_memory_of_a_stage_depends_on_its_operators_alone(seed, plan_seed):
    problem = random_problem(seed)
    plan = random_plan(problem, plan_seed)
    evaluation = evaluate(problem, plan)
    for entry in evaluation.usage:
        if not entry.operators:
            continue
        (in_flight,) = (s.in_flight for s in evaluation.stages if s.stage.device == entry.device)
        backwards = tuple(reversed(entry.operators))
        assert stage_memory_bytes(problem, backwards, in_flight) == entry.memory_bytes


@pytest.mark.parametrize("plan", [None, {"a": "p"}, "plan.json"])
def test_what_is_no_plan_is_refused_in_one_line(plan):
    problem = PartitionProblem((Operator("a", 1),), PQ)
    with pytest.raises(PartitionError, match=r"^the plan is a \w+; give a PartitionPlan"):
        evaluate(problem, plan)
    with pytest.raises(PartitionError, match=r"^problem is None; write a PartitionProblem"):
        evaluate(None, plan)


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
