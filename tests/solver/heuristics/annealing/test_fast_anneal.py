"""Compiled moves against the evaluator and the search in Python, and what it makes of plans."""

import itertools
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import solver.model.clock as clock_module
from solver import Device, SolveLimits, evaluate, solve
from solver.heuristics import local_search
from solver.heuristics.annealing import compiled_moves as moves
from solver.heuristics.annealing import fast_anneal, rounds
from solver.heuristics.annealing.anneal import Cooling, anneal
from solver.heuristics.annealing.fast_anneal import anneal_fast, pays_off
from solver.heuristics.annealing.move_tables import move_tables
from solver.heuristics.annealing.stage_state import StageState
from solver.heuristics.local_search import improve_slowly, plan_at
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.clusters import cluster, contract
from solver.presolve.instance import condense
from tests.support.graphs import grid
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(workers=1)


def in_order_at_random(units, devices, seed):
    """Positions that neither break the order nor, if that can be, pins."""
    rng = random.Random(seed)
    state = StageState(units, devices)
    state.place(sorted(rng.randrange(state.count) for _ in state.at))
    for _ in range(4 * len(units)):
        unit = rng.randrange(len(units))
        first = max((state.at[u] for u in state.predecessors[unit]), default=0)
        last = min((state.at[u] for u in state.successors[unit]), default=state.count - 1)
        allowed = [p for p in range(first, last + 1) if not state.is_banned(unit, p)]
        if allowed:
            target = rng.choice(allowed)
            if target != state.at[unit]:
                state.move(unit, target)
    return state.at


def assert_equals_state(numbers, layout, units, devices, seed):
    """All that moves have updated is what a new state counts for the same positions."""

    def row(place, count):
        return numbers[place : place + count].tolist()

    state = StageState(units, devices)
    state.place(row(layout.at, len(units)))
    n = len(devices)
    assert row(layout.parts, layout.bytes_at) == state.parts[: layout.bytes_at], seed
    excess = moves.excess_bytes(numbers, layout, layout.parts)
    assert row(layout.memory, n) == state.memory_bytes, seed
    assert excess == state.excess_bytes(), seed
    assert row(layout.size, n) == state.size, seed
    assert moves.largest_load(numbers, layout, layout.parts) == max(state.loads()), seed
    assert all(state.at[u] <= state.at[v] for u, v in units.edges), seed
    return state


def test_moves_count_what_the_state_in_python_counts():
    kinds, moved, banned = set(), 0, 0
    for seed in range(300):
        problem = random_problem(seed)
        units = condense(problem)
        devices = list(problem.devices)
        random.Random(seed).shuffle(devices)
        positions = in_order_at_random(units, devices, seed)
        numbers, layout = move_tables(units, devices, seed)
        moves.place_units(numbers, layout, np.array(positions))
        state = assert_equals_state(numbers, layout, units, devices, seed)
        pins_hold = not any(map(state.is_banned, range(len(units)), state.at))
        scale_ns = max(state.loads()) + 1.0
        for temperature_ns, price_ns in ((scale_ns, 0.0), (0.1 * scale_ns, 1e9), (0.0, 1.0)):
            excess = moves.excess_bytes(numbers, layout, layout.parts)
            energy_ns = moves.norm_of_loads(numbers, layout, layout.parts) + excess * price_ns
            energy_ns, best_ns = moves.run_moves(
                numbers, layout, 60, temperature_ns, price_ns, energy_ns, 1 << 62, 0
            )
            state = assert_equals_state(numbers, layout, units, devices, seed)
            norm_ns = moves.norm_of_loads(numbers, layout, layout.parts)
            excess = state.excess_bytes()
            assert energy_ns == pytest.approx(norm_ns + excess * price_ns, rel=1e-12), seed
            if pins_hold:
                assert not any(map(state.is_banned, range(len(units)), state.at)), seed
            if best_ns < 1 << 62:
                best_at = numbers[layout.best_at : layout.best_at + len(units)].tolist()
                evaluation = evaluate(problem, plan_at(units, devices, best_at))
                assert evaluation.bottleneck_ns == best_ns, seed
                assert evaluation.feasible or not pins_hold, (seed, evaluation.violations)
        moved += state.at != positions
        banned += pins_hold and any(allowed is not None for allowed in units.allowed_devices)
        kinds.add((problem.interconnect.charging, problem.memory_model, problem.schedule))
        kinds |= {"overlap"} if problem.interconnect.overlap else set()
        kinds |= {"links"} if problem.interconnect.links else set()
        kinds |= {"shared"} if any(len(entry.units) > 1 for entry in units.weights) else set()
    assert len(kinds) == 2 * 3 * 2 + 3
    assert moved > 150
    assert banned > 20


def test_moves_of_clusters_count_the_same():
    for seed in range(60):
        problem = random_problem(seed, min_operators=8, max_operators=14)
        units = condense(problem)
        cluster_of, count = cluster(units, [0] * len(units), 0.4, seed)
        graph = contract(units, cluster_of, count)
        numbers, layout = move_tables(graph, problem.devices, seed)
        positions = in_order_at_random(graph, problem.devices, seed)
        moves.place_units(numbers, layout, np.array(positions))
        energy_ns = moves.norm_of_loads(numbers, layout, layout.parts)
        moves.run_moves(numbers, layout, 60, energy_ns, 0.0, energy_ns, 1 << 62, 0)
        assert_equals_state(numbers, layout, graph, problem.devices, seed)


def test_plans_are_feasible_never_worse_and_mostly_optimal():
    plans = optimal = improved = 0
    for seed in range(120):
        problem = random_problem(seed, objective=("bottleneck",))
        start = solve(problem, LIMITS, solver="chain")
        if start.objective is None or len(problem.devices) ** len(problem.units) > 3000:
            continue
        units = condense(problem)
        devices = local_search._devices(units, start.plan)
        positions = [devices.index(d) for d in local_search._devices_of_units(units, start.plan)]
        value, found = anneal_fast(units, devices, positions, Cooling(4000, 0.1, 0.001), seed)
        evaluation = evaluate(problem, plan_at(units, devices, found))
        assert evaluation.feasible, (seed, evaluation.violations)
        assert evaluation.bottleneck_ns == value <= start.objective, seed
        best = brute_force(to_instance(problem))[0][0]
        assert value >= best, seed
        plans += 1
        optimal += value == best
        improved += value < start.objective
    assert plans > 25
    assert improved > 3
    # The order of the devices is that of the start, so not every optimum can be reached.
    assert optimal >= 0.8 * plans, (optimal, plans)


def test_as_good_as_the_search_in_python_by_as_many_moves():
    for seed, model in itertools.product(range(3), ("weights", "inference")):
        devices = tuple(Device(f"d{i}", 1300) for i in range(5))
        problem = grid(6, 30, seed, devices=devices, memory_model=model)
        units = condense(problem)
        start = solve(problem, LIMITS, solver="chain").plan
        positions = [devices.index(d) for d in local_search._devices_of_units(units, start)]
        cooling = Cooling(20_000, 0.02, 0.0001)
        state = StageState(units, devices)
        state.place(positions)
        slow, _ = anneal(state, "bottleneck", cooling, seed)
        # Of these moves, every second one or so finds its unit held on both sides.
        cooling = Cooling(60_000, 0.02, 0.0001)
        fast, _ = anneal_fast(units, devices, positions, cooling, seed)
        assert fast <= slow * 1.01, (seed, model, fast, slow)


def test_a_plan_that_does_not_fit_is_mended():
    devices = [Device(f"d{i}", 1300) for i in range(4)]
    problem = grid(6, 30, memory_model="inference", devices=devices)
    units = condense(problem)
    positions = [min(unit // 20, 3) for unit in range(len(units))]
    assert not evaluate(problem, plan_at(units, devices, positions)).feasible
    assert anneal_fast(units, devices, positions, Cooling(0, 0.01, 0.001), 0) is None
    value, found = anneal_fast(units, devices, positions, Cooling(100_000, 0.02, 0.001), 0)
    evaluation = evaluate(problem, plan_at(units, devices, found))
    assert evaluation.feasible
    assert evaluation.bottleneck_ns == value


def test_the_seed_and_the_moves_decide_alone():
    devices = [Device(f"d{i}") for i in range(4)]
    problem = grid(6, 20, devices=devices)
    units = condense(problem)
    positions = [unit // 30 for unit in range(len(units))]
    found = [
        anneal_fast(units, devices, positions, Cooling(5000, 0.02, 0.001), seed)
        for seed in (0, 0, 1)
    ]
    assert found[0] == found[1]
    assert found[0] != found[2]
    start = max(_loads(units, devices, positions))
    still = start, positions
    assert anneal_fast(units, devices, positions, Cooling(0, 0.02, 0.001), 0) == still
    cooling = Cooling(5000, 0.02, 0.001)
    assert anneal_fast(units, devices, positions, cooling, 0, target=start) == still
    assert anneal_fast(units, devices, positions, cooling, 0, clock=Clock(0.0)) == still
    # The first plan at the target is good enough.
    value, _ = anneal_fast(units, devices, positions, cooling, 0, target=start - 1)
    assert found[0][0] < value < start


def _loads(units, devices, positions):
    state = StageState(units, devices)
    state.place(positions)
    return state.loads()


def test_moves_cool_by_the_clock_where_time_is_short(monkeypatch):
    """A search that has time for some of its moves only ends about as low as one for all."""
    devices = [Device(f"d{i}") for i in range(4)]
    problem = grid(8, 40, seed=3, devices=devices)
    units = condense(problem)
    positions = [unit // 80 for unit in range(len(units))]
    ticks = itertools.count()
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(perf_counter=ticks.__next__))
    monkeypatch.setattr(fast_anneal, "_PIECE_WORK", 1_000_000)
    cold, _ = anneal_fast(units, devices, positions, Cooling(100_000, 0.3, 1e-5), 0)
    short, _ = anneal_fast(
        units, devices, positions, Cooling(10**9, 0.3, 1e-5), 0, clock=Clock(204)
    )
    hot, _ = anneal_fast(units, devices, positions, Cooling(100_000, 0.3, 0.3), 0)
    assert short <= cold * 1.01 < hot


def test_slow_searches_use_it_for_the_bottleneck_alone(monkeypatch):
    used = []

    def recorded(*args, **kwargs):
        used.append(True)
        return anneal_fast(*args, **kwargs)

    monkeypatch.setattr(rounds, "anneal_fast", recorded)
    for objective in ("bottleneck", "transfer", "latency", "peak_memory"):
        devices = tuple(Device(f"d{i}", 2000) for i in range(3))
        problem = grid(3, 10, devices=devices, objective=(objective,))
        start = solve(problem, LIMITS, solver="chain").plan
        list(improve_slowly(condense(problem), start, searches=1))
        assert bool(used) == (objective == "bottleneck")
        used.clear()


def test_with_a_clock_two_searches_run_at_the_same_time(monkeypatch):
    seeds = set()

    def recorded(units, devices, positions, cooling, seed, **limits):
        seeds.add(seed)
        return anneal_fast(units, devices, positions, cooling, seed, **limits)

    monkeypatch.setattr(rounds, "anneal_fast", recorded)
    monkeypatch.setattr(local_search.os, "cpu_count", lambda: 2)
    problem = grid(5, 30, devices=tuple(Device(f"d{i}") for i in range(6)))
    start = solve(problem, LIMITS, solver="chain")
    plans = list(
        improve_slowly(
            condense(problem),
            start.plan,
            searches=1,
            workers=3,
            clock=Clock(1.0),
        )
    )
    assert seeds == {0, local_search._THREAD_SEEDS}
    assert evaluate(problem, plans[-1]).feasible
    assert evaluate(problem, plans[-1]).bottleneck_ns < start.objective


def test_short_searches_do_without_it(monkeypatch):
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(perf_counter=lambda: 100.0))
    assert pays_off(UNLIMITED)
    assert pays_off(Clock(0.1))  # it has been loaded by now
    monkeypatch.delitem(sys.modules, "solver.heuristics.annealing.compiled_moves")
    assert pays_off(UNLIMITED)
    assert pays_off(Clock(0.1, is_deterministic=True))  # seconds of the wall are not limited
    for is_kept, enough_s, too_little_s in ((True, 4.0, 2.0), (False, 21.0, 19.0)):
        monkeypatch.setattr(fast_anneal, "_is_kept", lambda is_kept=is_kept: is_kept)
        assert pays_off(Clock(enough_s))
        assert not pays_off(Clock(too_little_s))


def test_nothing_but_a_slow_search_loads_the_compiler():
    script = (
        "import sys\n"
        "from solver import *\n"
        "import solver.search.rounds\n"
        "problem = PartitionProblem((Operator('a', 3), Operator('b', 4)), (Device('d'),))\n"
        "assert solve(problem, SolveLimits(workers=1)).objective == 7\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
