"""The dynamic program over ideals, against brute force and published optima."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import solver.dp.ideal_program
from solver import Device, Interconnect, Link, Operator, PartitionProblem, SolveLimits, solve
from solver.dp.ideal_program import can_win
from solver.evaluation.result import SolveStatus
from solver.model.problem_fields import Weight
from solver.stages.ideals import list_ideals, membership
from solver.stages.pair_sums import Crossing, PairSum
from tests.support.answers import check_proven
from tests.support.graphs import chain
from tests.support.ideal_cases import check_ideals, without_links
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts, some
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(workers=1)


def accepted(problem):
    """The problem without what the program declines: latency, and links between devices."""
    return without_links(problem).replace(
        chunks_per_device=1,
        objective=tuple(o for o in problem.objective if o != "latency") or ("bottleneck",),
    )


def chained(problem, seed):
    """The problem with a read from the operator before, for latency among its objectives."""
    operators = list(problem.operators)
    for before, own in itertools.pairwise(range(len(operators))):
        name, reads = operators[before].name, operators[own].reads
        reads = reads if name in reads else (*reads, name)
        operators[own] = replace(operators[own], reads=reads)
    operators = tuple(replace(op, is_backward=False) for op in operators)
    objective = [name for name in problem.objective if name != "latency"]
    objective.insert(random.Random(seed).randint(0, len(objective)), "latency")
    return without_links(problem).replace(operators=operators, objective=tuple(objective))


@pytest.mark.parametrize("block", some(2, of=4))
def test_it_equals_brute_force_or_declines(block):
    statuses = [
        check_ideals(random_problem(seed, max_operators=7), seed)
        for seed in range(block * 100, block * 100 + 100)
    ]
    declined = statuses.count(SolveStatus.UNKNOWN)
    assert 0 < declined <= 66
    assert statuses.count(SolveStatus.OPTIMAL) >= 20
    assert statuses.count(SolveStatus.INFEASIBLE) >= 5


@pytest.mark.parametrize("block", some(1, of=100))
def test_it_equals_brute_force_where_nothing_is_declined(block):
    """Tests numbers of devices that are limited too."""
    statuses = [
        check_ideals(
            accepted(random_problem(seed, max_operators=7, draw_chunks=seed % 3 == 0)), seed
        )
        for seed in range(1_000 + block * 120, 1_120 + block * 120)
    ]
    assert SolveStatus.UNKNOWN not in statuses
    assert statuses.count(SolveStatus.OPTIMAL) >= 60
    assert statuses.count(SolveStatus.FEASIBLE) <= 5


@counts(54, 7_500)
def test_it_equals_brute_force_where_values_are_relayed(count):
    statuses = [
        check_ideals(accepted(random_problem(seed, max_operators=6, relayed=True)), seed)
        for seed in range(2_000, 2_000 + count)
    ]
    # What crosses the two borders of a stage is all there is to know: nothing stays open.
    assert set(statuses) == {SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE}
    assert statuses.count(SolveStatus.OPTIMAL) >= count // 2


@pytest.mark.parametrize("relayed", [False, True])
@counts(80, 800)
def test_the_latency_of_chains_equals_brute_force(count, relayed):
    """Tests that nothing stays open, whoever pays and however many devices read a value."""
    found = Counter()
    for seed in range(5_000, 5_000 + count):
        problem = chained(random_problem(seed, max_operators=6, relayed=relayed), seed)
        status = check_ideals(problem, seed)
        if status is SolveStatus.UNKNOWN:
            result = solve(problem, LIMITS, solver="ideal-dp")
            assert result.reason == "transfer and latency are too large to be compared exactly"
        found[status] += 1
    assert found[SolveStatus.OPTIMAL] >= count // 3
    assert found[SolveStatus.UNKNOWN] <= count // 40
    assert found[SolveStatus.OPTIMAL] + found[SolveStatus.INFEASIBLE] >= count - count // 40


def test_a_chain_may_use_a_device_twice():
    """Tests that several chunks are declined: the best plan with two is none of runs."""
    times = {"fast": 1, "slow": 10}
    operators = tuple(
        Operator(name, times, reads, weights=(name,), transfer_ns=1)
        for name, reads in (("a", ()), ("b", ("a",)), ("c", ("b",)))
    )
    problem = PartitionProblem(
        operators,
        (Device("fast", 5, "fast"), Device("slow", 6, "slow")),
        weights={"a": Weight(3), "b": Weight(4), "c": Weight(2)},
        memory_model="weights",
        objective="latency",
    )
    assert solve(problem, LIMITS, solver="ideal-dp").objective == 23
    twice = problem.replace(chunks_per_device=2)
    assert not can_win(twice)
    assert solve(twice, LIMITS).objective == 16 == brute_force(to_instance(twice))[0][0]


def chain_of(count, **settings):
    times, fixed = [1 + i % 3 for i in range(count)], {"devices": [*map(Device, "abc")]}
    fixed["interconnect"] = Interconnect()
    return chain(count, latency_ns=times, value_bytes=5, **{**fixed, **settings})


CHUNKS = {"chunks_per_device": 2}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"objective": "step", "schedule": "gpipe"}, "step is not a sum or maximum over stages"),
        (CHUNKS, "several chunks on a device"),
        (
            {**CHUNKS, "interconnect": Interconnect(charging="relayed"), "memory_model": "weights"},
            "relayed through chunks",
        ),
        ({"interconnect": Interconnect(links={("a", "b"): Link(10)})}, "links between pairs"),
    ],
)
def test_it_declines_in_words(settings, reason):
    problem = chain_of(4, **settings)
    result = solve(problem, LIMITS, solver="ideal-dp")
    assert result.status is SolveStatus.UNKNOWN
    assert reason in result.reason
    assert result.plan is None
    assert not can_win(problem)


@pytest.mark.parametrize("objective", ["latency", ("devices", "latency")])
def test_it_declines_the_latency_of_stages_that_run_in_parallel(objective):
    problem = chain_of(4, objective=objective)
    apart = replace(problem.operators[-1], reads=("op1",))
    problem = problem.replace(operators=(*problem.operators[:-1], apart))
    result = solve(problem, LIMITS, solver="ideal-dp")
    assert result.status is SolveStatus.UNKNOWN
    assert result.reason == "latency is the sum of all loads only where units are a chain"
    assert not can_win(problem)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        # Twenty operators that read nothing have 2**20 ideals.
        (PartitionProblem([Operator(f"op{i}", 1) for i in range(20)], [Device("a")]), "ideals"),
        (
            chain_of(12, devices=[Device(f"d{i}", memory_bytes=100 + i) for i in range(11)]),
            "sets of devices",
        ),
    ],
    ids=["ideals", "devices"],
)
def test_it_declines_too_many(problem, reason):
    result = solve(problem, LIMITS, solver="ideal-dp")
    assert result.status is SolveStatus.UNKNOWN
    assert reason in result.reason
    assert not can_win(problem)


def test_a_time_limit_is_a_status():
    result = solve(chain_of(200), SolveLimits(time_limit_s=1e-9), solver="ideal-dp")
    assert result.status is SolveStatus.UNKNOWN
    assert result.reason == "the time limit ran out before a plan was found"


def test_what_it_refuted_before_it_stopped_is_a_bound(monkeypatch):
    """Tests every effort at which it can stop: the bound rises, never above the optimum."""
    times = [7 + i % 3 for i in range(30)]
    problem = chain(30, latency_ns=times, value_bytes=4, devices=[*map(Device, "abcd")])
    optimum = solve(problem, LIMITS, solver="ideal-dp").objective
    bounds = []
    for effort in range(1, 3000, 50):
        monkeypatch.setattr(solver.dp.ideal_program, "_MOST_PAIRS", effort)
        result = solve(problem, LIMITS, solver="ideal-dp")
        if result.status is SolveStatus.OPTIMAL:
            break
        assert "candidate stages" in result.reason
        bounds.append(result.objective_bound or 0)
    assert result.objective == optimum
    assert bounds == sorted(bounds)
    assert 0 < bounds[-1] <= optimum


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [(False, {SolveStatus.OPTIMAL}), (True, {SolveStatus.OPTIMAL, SolveStatus.FEASIBLE})],
)
def test_a_value_read_by_several_devices_gives_a_bound_or_a_proof(overlap, expected):
    """Tests that one send too few, peer to peer, never passes for an optimum.

    Sends are only counted in plans where they do not overlap with compute.
    """
    statuses = set()
    for seed in range(60):
        rng = random.Random(seed)
        operators = [Operator("source", 6, value_bytes=rng.randint(1, 9))]
        operators += [Operator(f"r{i}", rng.randint(3, 9), ("source",)) for i in range(4)]
        problem = PartitionProblem(
            tuple(operators),
            tuple(Device(f"d{i}") for i in range(3)),
            interconnect=Interconnect(Link(1_000_000_000), overlap=overlap),
        )
        statuses.add(check_ideals(problem, seed))
    assert statuses == expected


def with_dangling_outputs(memories_bytes):
    """A chain of eight with an output hanging from each, which takes no time but has a weight."""
    operators = []
    for i in range(8):
        operators.append(
            Operator(f"op{i}", 10, (f"op{i - 1}",) if i else (), transfer_ns=1, weights=("w",))
        )
        operators.append(Operator(f"out{i}", 0, (f"op{i}",), weights=(f"o{i}",), transfer_ns=1))
    return PartitionProblem(
        tuple(operators),
        tuple(Device(f"d{i}", memory) for i, memory in enumerate(memories_bytes)),
        weights={"w": Weight(1), **{f"o{i}": Weight(10) for i in range(8)}},
        interconnect=Interconnect(charging="host_staged"),
        memory_model="weights",
    )


@pytest.mark.parametrize(
    ("memories_bytes", "expected"),
    [
        ((1000, 1000, 1000), 31),
        ((31, 31, 31), 31),
        ((71, 21, 11), 32),
        ((30, 30, 30), 86),
        ((30, 30, 20), None),
    ],
)
def test_weights_that_are_first_forgotten_count_in_the_end(memories_bytes, expected):
    """Tests both ways: the relaxation's plan fits, or the outputs' weights decide."""
    problem = with_dangling_outputs(memories_bytes)
    result = solve(problem, LIMITS, solver="ideal-dp")
    assert result.objective == expected == solve(problem, LIMITS, solver="cp-sat").objective
    if expected is None:
        assert result.status is SolveStatus.INFEASIBLE
    else:
        assert result.status is SolveStatus.OPTIMAL


def test_inputs_of_no_cost_are_placed_where_they_are_read():
    """Tests free sources that feed several readers, through each other."""
    operators = (
        Operator("mask"),
        Operator("view", 0, ("mask",)),
        *(
            Operator(f"op{i}", 5, ("view", *((f"op{i - 1}",) if i else ())), value_bytes=1)
            for i in range(6)
        ),
    )
    problem = PartitionProblem(
        operators, tuple(Device(f"d{i}") for i in range(3)), objective=("bottleneck", "transfer")
    )
    result = solve(problem, LIMITS, solver="ideal-dp")
    assert result.status is SolveStatus.OPTIMAL
    assert result.objective_values == (10, 2)


@pytest.mark.parametrize("memory_model", ["weights", "inference"])
@pytest.mark.parametrize("memory_bytes", [None, 5, 4, 2])
@pytest.mark.parametrize("objective", ["bottleneck", "devices", "peak_memory"])
def test_operators_without_times_are_placed(memory_model, memory_bytes, objective):
    """Tests that something is left to place where nothing costs anything but memory."""
    problem = PartitionProblem(
        (Operator("a", weights=("u",)), Operator("b", reads=("a",), weights=("v",))),
        (Device("d0", memory_bytes), Device("d1", memory_bytes)),
        weights={"u": Weight(2), "v": Weight(3)},
        memory_model=memory_model,
        objective=(objective,),
    )
    result = solve(problem, LIMITS, solver="ideal-dp")
    check_proven(result, brute_force(to_instance(problem)))


def test_ideals_of_random_graphs():
    for seed in range(50):
        rng = random.Random(seed)
        count = rng.randint(1, 8)
        edges = [(a, b) for a in range(count) for b in range(a + 1, count) if rng.random() < 0.3]
        expected = {
            chosen
            for chosen in range(1 << count)
            if all(chosen >> a & 1 or not chosen >> b & 1 for a, b in edges)
        }
        ideals = list_ideals(count, edges, 1 << count)
        assert len(ideals) == len(expected)
        assert set(ideals) == expected
        assert [i.bit_count() for i in ideals] == sorted(i.bit_count() for i in ideals)
        assert list_ideals(count, edges, len(expected)) == ideals
        assert list_ideals(count, edges, len(expected) - 1) is None
        member = membership(ideals, count)
        assert [[bool(i >> u & 1) for i in ideals] for u in range(count)] == member.tolist()


def test_sums_over_nets_between_nested_ideals():
    """Tests the three indicators on all pairs of nested sets, whichever way the nets lead."""
    count = 5
    sets = range(1 << count)
    member = np.array([[bool(s >> u & 1) for s in sets] for u in range(count)])
    pairs = [(i, j) for i in sets for j in sets if i & ~j == 0]
    for seed in range(30):
        rng = random.Random(seed)
        nets = []
        for _ in range(3):
            producer, *consumers = rng.sample(range(count), rng.randint(2, count))
            nets.append(Crossing(producer, tuple(consumers), rng.randint(1, 9)))
        sent, received, touched = PairSum(member), PairSum(member), PairSum(member)
        for net in nets:
            sent.add_sent(net)
            received.add_received(net)
            touched.add_touched(net)
        every = np.arange(1 << count)
        tables = [table.table(every, every) for table in (sent, received, touched)]
        starts, ends = np.array(pairs).T
        for table, sums in zip(tables, (sent, received, touched), strict=True):
            assert (sums.at(starts, ends) == table[starts, ends]).all()
        for i, j in pairs:
            inside = {u for u in range(count) if (j & ~i) >> u & 1}
            expected = [0, 0, 0]
            for net in nets:
                made, read = net.producer in inside, inside & set(net.consumers)
                expected[0] += net.cost * (made and len(read) < len(net.consumers))
                expected[1] += net.cost * (not made and bool(read))
                expected[2] += net.cost * bool(read)
            assert [table[i, j] for table in tables] == expected


def test_can_win_says_yes_to_chains():
    assert can_win(chain_of(300))
