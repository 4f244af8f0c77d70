"""Local search: feasible, never worse, repeatable, and against brute force."""

import itertools
import random
from types import SimpleNamespace

import pytest

import solver.model.clock as clock_module
from solver import Device, PartitionPlan, SolveLimits, evaluate, solve
from solver.heuristics.annealing.anneal import Cooling, anneal
from solver.heuristics.annealing.stage_state import StageState
from solver.heuristics.local_search import first_incumbents, improve
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.clusters import cluster
from solver.presolve.instance import condense, contract
from tests.support.graphs import grid, two_towers
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(workers=1)


def test_blocks_between_cuts_are_improved():
    problem = grid(4, 20, devices=[Device(f"d{i}") for i in range(4)], cuts=("o3.9",))
    start = solve(problem, LIMITS, solver="chain")
    plan = improve(condense(problem), start.plan, max_iterations=4000)
    assert evaluate(problem, plan).feasible
    assert evaluate(problem, plan).bottleneck_ns < start.objective


@pytest.mark.parametrize("objective", ["bottleneck", "transfer", "latency", "peak_memory"])
@counts(20, 60)
def test_never_better_than_the_optimum_and_mostly_equal(count, objective):
    plans = optimal = 0
    for seed in range(count):
        problem = random_problem(seed, objective=(objective,))
        if len(problem.devices) ** len(problem.units) > 3000:
            continue
        best = brute_force(to_instance(problem))
        plan = first_incumbents(condense(problem), max_iterations=3000)
        if plan is None:
            continue
        value = evaluate(problem, plan).objective
        assert best is not None, seed
        assert value >= best[0], seed
        plans += 1
        optimal += value == best[0]
    assert plans > count // 3
    assert optimal >= 0.8 * plans, (optimal, plans)


def test_it_stops_at_the_target_and_at_the_deadline():
    problem = grid(6, 20, devices=[Device(f"d{i}") for i in range(4)])
    units = condense(problem)
    start = solve(problem, LIMITS, solver="chain")
    assert improve(units, start.plan, target=start.objective) == start.plan
    assert improve(units, start.plan, clock=Clock(0.0)) == start.plan


def test_two_rows_are_pulled_apart():
    """Tests that moves of several units cross a wall that single moves do not."""
    problem = two_towers(12)
    start = {op.name: "p" if i < 12 else "q" for i, op in enumerate(problem.operators)}
    start = PartitionPlan(start, ("p", "q"))
    assert evaluate(problem, start).bottleneck_ns == 320
    plan = improve(condense(problem), start, max_iterations=6000)
    assert evaluate(problem, plan).bottleneck_ns == 120


@pytest.mark.parametrize("model", ["weights", "inference"])
def test_a_plan_that_does_not_fit_is_mended(model):
    devices = [Device(f"d{i}", 1300) for i in range(4)]
    problem = grid(6, 30, memory_model=model, devices=devices)
    units = condense(problem)
    names = [op.name for op in problem.operators]
    start = PartitionPlan(
        {name: f"d{min(i // 20, 3)}" for i, name in enumerate(names)}, ("d0", "d1", "d2", "d3")
    )
    assert not evaluate(problem, start).feasible
    plan = improve(units, start, max_iterations=40_000)
    assert evaluate(problem, plan).feasible


def test_no_more_devices_than_allowed_and_chunks_are_left_alone():
    devices = [Device(f"d{i}") for i in range(4)]
    problem = grid(4, 10, devices=devices, max_devices=2, chunks_per_device=2)
    plan = first_incumbents(condense(problem), max_iterations=4000)
    evaluation = evaluate(problem, plan)
    assert evaluation.feasible
    assert evaluation.devices_used == 2
    names = [op.name for op in problem.operators]
    chunked = PartitionPlan(
        {n: f"d{i // 10 % 2}" for i, n in enumerate(names)},
        ("d0", "d1"),
        {n: i // 20 for i, n in enumerate(names)},
    )
    assert improve(condense(problem), chunked, max_iterations=100) is chunked


@pytest.mark.parametrize("objective", ["bottleneck", "transfer", "peak_memory", "latency"])
@counts(40, 120)
def test_the_search_knows_the_value_of_its_plan(count, objective):
    compared = 0
    for seed in range(count):
        problem = random_problem(seed, objective=(objective,))
        units = condense(problem)
        state = StageState(units, problem.devices, every_value=True)
        found = anneal(state, objective, Cooling(300, 0.1, 0.01), seed)
        if found is None:
            continue
        value, positions = found
        names = [device.name for device in problem.devices]
        used = tuple(name for p, name in enumerate(names) if p in positions)
        plan = PartitionPlan(units.lift([names[p] for p in positions]), used)
        evaluation = evaluate(problem, plan)
        pins_hold = not any(state.is_banned(unit, 0) and p == 0 for unit, p in enumerate(positions))
        assert evaluation.feasible == pins_hold, (seed, evaluation.violations)
        if objective != "peak_memory":
            assert value == evaluation.objective[0], seed
        compared += 1
    assert compared > count // 4


def test_clusters_keep_positions_apart_and_stay_acyclic():
    for seed in range(200):
        problem = random_problem(seed, min_operators=8, max_operators=14)
        units = condense(problem)
        rng = random.Random(seed)
        cut = rng.randint(0, len(units))
        positions = [int(unit >= cut) for unit in range(len(units))]
        cluster_of, count = cluster(units, positions, 0.5, seed)
        graph = contract(units, cluster_of, count)
        assert sorted(set(cluster_of)) == list(range(count))
        # Numbers in a topological order are a proof that there is no cycle.
        assert all(source < target for source, target in graph.edges)
        assert sorted(i for m in graph.members for i in m) == list(range(len(problem.operators)))
        for unit, name in enumerate(cluster_of):
            same = {positions[u] for u, other in enumerate(cluster_of) if other == name}
            assert same == {positions[unit]}


def test_clusters_cost_what_their_units_cost():
    for seed in range(200):
        problem = random_problem(seed, min_operators=6, max_operators=12)
        units = condense(problem)
        cluster_of, count = cluster(units, [0] * len(units), 0.4, seed)
        graph = contract(units, cluster_of, count)
        rng = random.Random(seed)
        positions = sorted(rng.randrange(len(problem.devices)) for _ in range(count))
        coarse = StageState(graph, problem.devices, every_value=True)
        coarse.place(positions)
        fine = StageState(units, problem.devices, every_value=True)
        fine.place([positions[name] for name in cluster_of])
        assert coarse.loads_of(coarse.parts) == fine.loads_of(fine.parts)
        assert coarse.memory_bytes == fine.memory_bytes
        assert coarse.received_bytes == fine.received_bytes


def test_moves_cool_by_the_clock_where_time_is_short(monkeypatch):
    """A search that has time for some of its moves only ends as cold as one that has for all."""
    problem = grid(8, 40, seed=3, devices=tuple(Device(f"d{i}") for i in range(4)))
    units = condense(problem)
    start = solve(problem, LIMITS, solver="chain").plan
    place = start.device_order.index
    ticks = itertools.count()
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(perf_counter=ticks.__next__))

    def search(cooling, clock):
        state = StageState(units, [problem.device_of[name] for name in start.device_order])
        state.place([place(start.assignment[problem.operators[m[0]].name]) for m in units.members])
        value, _ = anneal(state, "bottleneck", cooling, 0, clock=clock)
        return value, max(state.loads_of(state.parts)) / value

    all_moves, left_behind = search(Cooling(30_000, 0.05, 1e-5), UNLIMITED)
    assert left_behind < 1.01
    some_moves, left_behind = search(Cooling(10**9, 0.05, 1e-5), Clock(240))
    assert left_behind < 1.01
    assert some_moves <= all_moves * 1.02
    # One that stays hot leaves its best plan far behind.
    _, left_behind = search(Cooling(30_000, 0.05, 0.05), UNLIMITED)
    assert left_behind > 1.05
