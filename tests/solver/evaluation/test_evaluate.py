from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.evaluation.evaluate import evaluate, stage_memory_bytes
from solver.model.devices import Device, Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import ColocationGroup, GraphInput, PartitionProblem, Weight
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


def timeline(problem, device, **devices_of):
    return usage(judged(problem, **devices_of), device).timeline_bytes


# -- live storages ------------------------------------------------------------------------------


def test_a_storage_lives_until_its_last_reader_has_run(chain):
    assert timeline(chain(), "p", p="abcd") == (1, 11, 110, 1100)


def test_a_value_that_nobody_reads_lives_while_its_operator_runs(chain):
    dead = Operator("dead", storage_bytes=7, value_bytes=7)
    problem = chain(operators=(dead, *chain().operators))
    everything = {op.name: "p" for op in problem.operators}
    evaluation = evaluate(problem, PartitionPlan.from_assignment(problem, everything))
    assert evaluation.usage[0].timeline_bytes == (7, 1, 11, 110, 1100)


def test_a_sent_value_is_held_until_the_stage_ends(chain):
    # c reads a on q, so p holds a while it runs b though nothing there reads it any more.
    a, b, c, d = chain().operators
    operators = (a, replace(b, reads=()), replace(c, reads=("a",)), replace(d, reads=("b",)))
    problem = chain(operators=operators)
    assert timeline(problem, "p", p="abd", q="c") == (1, 11, 1011)
    assert timeline(problem, "p", p="abcd") == (1, 11, 111, 1010)


def test_an_output_is_held_until_the_stage_ends(chain):
    a, *others = chain().operators
    problem = chain(operators=(replace(a, is_output=True), *others))
    assert timeline(problem, "p", p="abcd") == (1, 11, 111, 1101)


def test_a_received_value_is_held_for_the_whole_stage_and_once(chain):
    a, b, c, d = chain().operators
    problem = chain(operators=(a, b, replace(c, reads=("b", "a")), replace(d, reads=("c", "a"))))
    assert timeline(problem, "q", p="ab", q="cd") == (111, 1111)
    assert usage(judged(problem, p="ab", q="cd"), "q").received_bytes == 11


def test_a_graph_input_is_held_by_every_device_with_a_reader_and_costs_no_transfer(chain):
    a, b, c, d = chain().operators
    operators = (
        replace(a, reads=("x",)),
        b,
        replace(c, reads=("b", "x")),
        replace(d, reads=("x",)),
    )
    problem = chain(operators=operators, inputs=(GraphInput("x", 10_000),))
    evaluation = judged(problem, p="ab", q="cd")
    assert [entry.received_bytes for entry in evaluation.usage] == [10_000, 10_010]
    assert evaluation.transfer_bytes == 10


def test_a_view_allocates_nothing_and_keeps_its_base_alive(chain):
    a, b, c, d = chain().operators
    view = Operator("v", reads=("a",), alias_of="a", value_bytes=5)
    operators = (a, view, b, c, replace(d, reads=("c", "v")))
    assert timeline(chain(operators=operators), "p", p="avbcd") == (1, 1, 11, 111, 1101)


def test_sending_a_view_holds_the_base_and_moves_the_view(chain):
    a, b, c, d = chain().operators
    view = Operator("v", reads=("a",), alias_of="a", value_bytes=5)
    operators = (a, view, b, c, replace(d, reads=("v",)))
    evaluation = judged(chain(operators=operators), p="avbc", q="d")
    assert usage(evaluation, "p").timeline_bytes == (1, 1, 11, 111)
    assert usage(evaluation, "q").received_bytes == 5
    assert evaluation.transfer_bytes == 5


def test_a_view_of_a_received_value_costs_no_storage(chain):
    view = Operator("v", reads=("a",), alias_of="a", value_bytes=5)
    a, b, *_ = chain().operators
    problem = chain(operators=(a, view, replace(b, reads=("v",))))
    assert timeline(problem, "q", p="a", q="vb") == (1, 11)


def test_a_view_of_a_graph_input_costs_no_storage(chain):
    view = Operator("v", reads=("x",), alias_of="x", value_bytes=5)
    problem = chain(operators=(view,), inputs=(GraphInput("x", 20),))
    assert timeline(problem, "p", p="v") == (20,)


def test_views_of_views_keep_the_base(chain):
    operators = (
        Operator("a", storage_bytes=8, value_bytes=8),
        Operator("v", reads=("a",), alias_of="a"),
        Operator("w", reads=("v",), alias_of="v"),
        Operator("z", storage_bytes=1),
        Operator("r", reads=("w",), storage_bytes=2),
    )
    assert timeline(chain(operators=operators), "p", p="avwzr") == (8, 8, 8, 9, 10)


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


def test_a_weight_is_held_once_by_every_device_that_reads_it():
    evaluation = judged(weighted(), p="ab", q="cd")
    assert [entry.weights_bytes for entry in evaluation.usage] == [30_000, 10_000]
    assert [entry.memory_bytes for entry in evaluation.usage] == [30_011, 11_110]


def test_the_weights_model_counts_nothing_else():
    evaluation = judged(weighted(memory_model="weights"), p="ab", q="cd")
    assert [entry.memory_bytes for entry in evaluation.usage] == [30_000, 10_000]
    assert usage(evaluation, "p").timeline_bytes == (30_000, 30_000)


@pytest.mark.parametrize(
    ("schedule", "microbatches", "in_flight"),
    [
        ("gpipe", 1, (1, 1, 1)),
        ("gpipe", 5, (5, 5, 5)),
        ("1f1b", 1, (1, 1, 1)),
        ("1f1b", 2, (2, 2, 1)),
        ("1f1b", 8, (3, 2, 1)),
    ],
)
def test_what_is_saved_counts_for_each_microbatch_in_flight(schedule, microbatches, in_flight):
    problem = weighted(
        devices=(*PQ, Device("r")),
        memory_model="training",
        schedule=schedule,
        microbatches=microbatches,
    )
    evaluation = judged(problem, p="ab", q="c", r="d")
    sizes = (300_000, 200_000, 400_000)
    saved = [count * size for count, size in zip(in_flight, sizes, strict=True)]
    earlier = [total - size for total, size in zip(saved, sizes, strict=True)]
    assert [entry.saved_bytes for entry in evaluation.usage] == earlier
    assert [entry.weights_bytes for entry in evaluation.usage] == [60_000, 40_000, 0]
    # Values that are sent or received are there for all microbatches.
    m = microbatches
    assert usage(evaluation, "p").memory_bytes == 60_000 + saved[0] + 11 + m * 10
    assert usage(evaluation, "q").memory_bytes == 40_000 + saved[1] + m * 10 + 100 + m * 100
    assert usage(evaluation, "r").memory_bytes == saved[2] + m * 100 + 1000 + m * 1000


def test_in_flight_follows_the_stage_order_not_the_device_order():
    problem = weighted(memory_model="training", schedule="1f1b", microbatches=4)
    evaluation = judged(problem, q="ab", p="cd")
    assert usage(evaluation, "q").saved_bytes == 1 * 300_000
    assert usage(evaluation, "p").saved_bytes == 0


def test_peak_operator_is_the_first_of_equals(chain):
    operators = tuple(Operator(name, storage_bytes=4) for name in "abc")
    assert judged(chain(operators=operators), p="abc").usage[0].peak_operator == "a"
    assert judged(chain(), p="abcd").usage[0].peak_operator == "d"
    assert judged(chain(), p="abcd").usage[1].peak_operator is None


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
    assert times(evaluation) == [
        (100, 20, 0, 120),
        (200, 20, 10, 230),
        (1200, 0, 30, 1230),
    ]
    assert evaluation.transfer_bytes == 10 + 10 + 20
    assert evaluation.bottleneck_ns == 1230
    assert evaluation.latency_ns == 120 + 230 + 1230
    assert evaluation.devices_used == 3


def test_host_staged_pays_one_write_and_one_read_per_consuming_device():
    interconnect = Interconnect(default=ONE_BYTE_PER_NS, charging="host_staged")
    evaluation = judged(fan_out(interconnect=interconnect), p="a", q="b", r="cd")
    assert times(evaluation) == [
        (100, 10, 0, 110),
        (200, 20, 10, 230),
        (1200, 0, 30, 1230),
    ]
    assert evaluation.transfer_bytes == 40


def test_a_host_pays_nothing_when_staged_and_like_others_when_not():
    devices = (Device("p", is_host=True), Device("q"), Device("r", is_host=True))
    staged = Interconnect(default=ONE_BYTE_PER_NS, charging="host_staged")
    evaluation = judged(fan_out(devices=devices, interconnect=staged), p="a", q="b", r="cd")
    assert [entry[1:3] for entry in times(evaluation)] == [(0, 0), (20, 10), (0, 0)]
    evaluation = judged(fan_out(devices=devices), p="a", q="b", r="cd")
    assert [entry[1:3] for entry in times(evaluation)] == [(20, 0), (20, 10), (0, 30)]


def test_each_ordered_pair_has_its_own_link():
    links = {("p", "q"): Link(None, 3), ("q", "p"): Link(None, 5), ("p", "r"): Link(4_000_000_000)}
    problem = fan_out(interconnect=Interconnect(ONE_BYTE_PER_NS, links))
    evaluation = judged(problem, p="a", q="b", r="cd")
    assert usage(evaluation, "p").send_ns == 3 + 3  # 10 bytes at 4 per ns: 2.5, rounded up
    assert usage(evaluation, "q").receive_ns == 3
    assert usage(evaluation, "r").receive_ns == 3 + 20


def test_staged_links_are_those_to_and_from_the_host():
    links = {
        ("p", "host"): Link(None, 1),
        ("host", "p"): Link(None, 2),
        ("host", "q"): Link(None, 4),
        ("p", "q"): Link(None, 64),
    }
    problem = fan_out(interconnect=Interconnect(ONE_BYTE_PER_NS, links, "host_staged"))
    evaluation = judged(problem, p="a", q="bcd")
    assert (usage(evaluation, "p").send_ns, usage(evaluation, "q").receive_ns) == (1, 4)


@pytest.mark.parametrize("charging", ["peer_to_peer", "host_staged"])
def test_an_operators_own_transfer_time_overrides_every_link(charging):
    a, *others = fan_out().operators
    problem = fan_out(
        operators=(replace(a, transfer_ns=7), *others),
        interconnect=Interconnect(Link(1), {("p", "q"): Link(2)}, charging),
    )
    evaluation = judged(problem, p="a", q="bcd")
    assert (usage(evaluation, "p").send_ns, usage(evaluation, "q").receive_ns) == (7, 7)


def test_overlap_takes_the_largest_of_the_three():
    interconnect = Interconnect(Link(100_000_000), overlap=True)  # 10 ns per byte
    evaluation = judged(fan_out(interconnect=interconnect), p="a", q="b", r="cd")
    assert [e.load_ns for e in evaluation.usage] == [200, 200, 1200]
    assert evaluation.latency_ns == 200 + 200 + 1200


def test_latency_is_the_longest_path_not_the_sum():
    operators = (
        Operator("a", 1),
        Operator("b", 10, ("a",)),
        Operator("c", 100, ("a",)),
        Operator("d", 1000, ("b",)),
    )
    devices = tuple(Device(name) for name in "pqrs")
    problem = PartitionProblem(operators, devices, interconnect=Interconnect(Link(None, 0)))
    assert judged(problem, p="a", q="b", r="c", s="d").latency_ns == 1 + 10 + 1000
    assert judged(problem, p="a", q="b", r="cd").latency_ns == 1 + 10 + 1100


def test_latency_with_a_cycle_is_the_sum_of_all_loads():
    evaluation = judged(fan_out(), p="ac", q="b", r="d")
    assert evaluation.latency_ns == sum(entry.load_ns for entry in evaluation.usage)
    assert not evaluation.feasible


def test_latency_of_an_operator_is_that_of_the_class_of_its_device():
    operators = (Operator("a", {"fast": 1, "slow": 9}), Operator("b", 5))
    devices = (Device("p", device_class="slow"), Device("q", device_class="fast"))
    problem = PartitionProblem(operators, devices)
    assert [e.compute_ns for e in judged(problem, p="ab").usage] == [14, 0]
    assert [e.compute_ns for e in judged(problem, q="ab").usage] == [0, 6]


def test_backward_edges_cost_transfers_but_order_nothing(chain):
    operators = (
        Operator("f", 1),
        Operator("g", 1, ("f",), value_bytes=8),
        Operator("h", 1, ("g",), value_bytes=4, is_backward=True),
        Operator("i", 1, ("h",), is_backward=True),
    )
    problem = chain(operators=operators, memory_model="weights")
    evaluation = judged(problem, p="fi", q="gh")
    assert evaluation.feasible
    assert evaluation.transfer_bytes == 4
    assert usage(evaluation, "q").send_ns == usage(evaluation, "p").receive_ns == 4


def test_peak_memory_is_per_mille_of_each_limited_device_rounded_up():
    problem = weighted(devices=(Device("p", 300_000), Device("q", 12_000), Device("r")))
    evaluation = judged(problem, p="ab", q="cd")
    # 30,011 of 300,000 is 100.04 per mille; 11,110 of 12,000 is 925.8.
    assert [e.peak_memory_permille for e in evaluation.usage] == [101, 926, 0]
    assert evaluation.peak_memory_permille == 926
    assert judged(problem, r="abcd").peak_memory_permille == 0


def test_objectives_come_in_the_order_of_the_problem():
    names = ("devices", "transfer", "bottleneck", "latency", "peak_memory")
    evaluation = judged(fan_out(objective=names), p="a", q="b", r="cd")
    assert evaluation.objective == (3, 40, 1230, 1580, 0)
    for name, value in zip(names, evaluation.objective, strict=True):
        assert evaluation.value(name) == value
        assert judged(fan_out(objective=name), p="a", q="b", r="cd").objective == (value,)


# -- violations ---------------------------------------------------------------------------------


def test_a_plan_that_breaks_nothing_is_feasible():
    evaluation = judged(fan_out(), p="a", q="b", r="cd")
    assert evaluation.violations == ()
    assert evaluation.feasible


def test_memory_is_exceeded_by_the_last_byte():
    full = weighted(devices=(Device("p", 30_011), Device("q", 11_110)))
    assert judged(full, p="ab", q="cd").feasible
    short = weighted(devices=(Device("p", 30_010), Device("q", 11_110)))
    assert judged(short, p="ab", q="cd").violations == (
        "device 'p' needs 30,011 bytes but has 30,010: 1 too few",
    )


def test_a_cycle_names_its_devices():
    (sentence,) = judged(fan_out(), p="ac", q="b", r="d").violations
    assert sentence in (
        "the stages form a cycle: p -> q -> p",
        "the stages form a cycle: q -> p -> q",
    )


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
            Operator(
                "c",
                100,
                ("a", "b"),
                storage_bytes=100,
                weights=("w",),
                backward=saves,
                is_output=True,
            ),
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


def test_a_value_that_several_chunks_read_is_received_by_the_first():
    problem = fan_out(chunks_per_device=2, interconnect=Interconnect(Link(latency_ns=7)))
    evaluation = chunked(problem, [(1, "d")], "pq", p="a", q="bcd")
    assert evaluation.usage[1].receive_ns == 7
    assert [entry.receive_ns for entry in evaluation.stages] == [0, 7, 0]
    # The chunks of a device run one after another, though no value joins b and c to d here.
    total = sum(entry.time_ns for entry in evaluation.stages)
    assert evaluation.latency_ns == total


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


@given(SEEDS, st.integers(0, 20))
def test_one_device_transfers_nothing(seed, index):
    problem = random_problem(seed)
    device = problem.devices[index % len(problem.devices)].name
    evaluation = evaluate(
        problem, PartitionPlan({op.name: device for op in problem.operators}, (device,))
    )
    assert evaluation.transfer_bytes == 0
    assert evaluation.devices_used == 1
    assert all(entry.send_ns == entry.receive_ns == 0 for entry in evaluation.usage)
    assert evaluation.latency_ns == evaluation.bottleneck_ns
    assert not any("stage" in sentence for sentence in evaluation.violations)


@given(SEEDS, st.integers(0, 20), st.lists(st.integers(0, 10**8), min_size=4, max_size=4))
def test_more_memory_never_breaks_a_plan(seed, plan_seed, more):
    problem = random_problem(seed)
    plan = random_plan(problem, plan_seed)
    larger = problem.replace(
        devices=tuple(
            replace(
                device,
                memory_bytes=None
                if device.memory_bytes is None or not extra % 7
                else device.memory_bytes + extra,
            )
            for device, extra in zip(problem.devices, more, strict=False)
        )
    )
    before, after = evaluate(problem, plan), evaluate(larger, plan)
    assert after.feasible or not before.feasible
    assert len(after.violations) <= len(before.violations)
    assert after.peak_memory_permille <= before.peak_memory_permille
    assert [e.memory_bytes for e in after.usage] == [e.memory_bytes for e in before.usage]


def numbers(evaluation):
    return (
        evaluation.devices_used,
        evaluation.transfer_bytes,
        evaluation.bottleneck_ns,
        evaluation.latency_ns,
        evaluation.peak_memory_permille,
        evaluation.feasible,
        len(evaluation.violations),
    )


@given(SEEDS, st.integers(0, 20), st.randoms())
def test_new_names_change_no_cost(seed, plan_seed, random):
    problem = random_problem(seed)
    plan = random_plan(problem, plan_seed)
    old = [
        *(op.name for op in problem.operators),
        *(g.name for g in problem.inputs),
        *(device.name for device in problem.devices),
        *problem.weights,
    ]
    fresh = [f"n{i}" for i in range(len(old))]
    random.shuffle(fresh)
    new = {**dict(zip(old, fresh, strict=True)), "host": "host"}

    def many(names):
        return tuple(new[name] for name in names)

    links = problem.interconnect.links
    renamed = problem.replace(
        operators=tuple(
            replace(
                op,
                name=new[op.name],
                reads=many(op.reads),
                alias_of=None if op.alias_of is None else new[op.alias_of],
                weights=many(op.weights),
                backward=replace(
                    op.backward,
                    passes_to=new.get(op.backward.passes_to),
                    slices=many(op.backward.slices),
                ),
                allowed_devices=(
                    None if op.allowed_devices is None else frozenset(many(op.allowed_devices))
                ),
            )
            for op in problem.operators
        ),
        devices=tuple(replace(device, name=new[device.name]) for device in problem.devices),
        inputs=tuple(replace(g, name=new[g.name]) for g in problem.inputs),
        weights={new[key]: weight for key, weight in problem.weights.items()},
        colocation=tuple(ColocationGroup(many(group.operators)) for group in problem.colocation),
        interconnect=replace(
            problem.interconnect, links={many(pair): link for pair, link in links.items()}
        ),
    )
    new_plan = PartitionPlan(
        {new[op]: new[device] for op, device in plan.assignment.items()}, many(plan.device_order)
    )
    assert numbers(evaluate(renamed, new_plan)) == numbers(evaluate(problem, plan))


@given(SEEDS, st.integers(0, 20), st.integers(0, 23))
def test_equal_devices_may_change_places(seed, plan_seed, permutation):
    problem = random_problem(seed)
    first = problem.devices[0]
    problem = problem.replace(
        operators=tuple(replace(op, allowed_devices=None) for op in problem.operators),
        devices=tuple(replace(first, name=device.name) for device in problem.devices),
        interconnect=replace(problem.interconnect, links={}),
    )
    names = [device.name for device in problem.devices]
    orders = list(permutations(names))
    moved = dict(zip(names, orders[permutation % len(orders)], strict=True))
    plan = random_plan(problem, plan_seed)
    new_plan = PartitionPlan(
        {op: moved[device] for op, device in plan.assignment.items()},
        tuple(moved[device] for device in plan.device_order),
    )
    before, after = evaluate(problem, plan), evaluate(problem, new_plan)
    assert numbers(after) == numbers(before)
    by_device = {entry.device: entry for entry in after.usage}
    for entry in before.usage:
        assert replace(by_device[moved[entry.device]], device=entry.device) == entry


@given(SEEDS, st.integers(0, 20))
def test_latency_lies_between_the_bottleneck_and_the_sum_of_loads(seed, plan_seed):
    problem = random_problem(seed)
    evaluation = evaluate(problem, random_plan(problem, plan_seed))
    total = sum(entry.load_ns for entry in evaluation.usage)
    assert evaluation.bottleneck_ns <= evaluation.latency_ns <= total


@given(SEEDS, st.integers(0, 20))
def test_overlap_never_costs_more_and_at_most_a_third_less(seed, plan_seed):
    problem = random_problem(seed)
    plan = random_plan(problem, plan_seed)
    summed, overlapped = (
        evaluate(
            problem.replace(interconnect=replace(problem.interconnect, overlap=overlap)), plan
        ).bottleneck_ns
        for overlap in (False, True)
    )
    assert summed / 3 <= overlapped <= summed


@pytest.mark.parametrize("plan", [None, {"a": "p"}, "plan.json"])
def test_what_is_no_plan_is_refused_in_one_line(plan):
    problem = PartitionProblem((Operator("a", 1),), PQ)
    with pytest.raises(PartitionError, match=r"^the plan is a \w+; give a PartitionPlan"):
        evaluate(problem, plan)
    with pytest.raises(PartitionError, match=r"^problem is None; write a PartitionProblem"):
        evaluate(None, plan)
