"""Sub-solves in which all borders move at once, and what many stages read, anywhere."""

import random

import pytest

from solver import Device, Interconnect, Link, Operator, PartitionPlan, PartitionProblem, Weight
from solver.bounds.spine import longest_path
from solver.evaluation.evaluate import evaluate
from solver.heuristics.neighbourhoods.border_clusters import BorderClusters
from solver.heuristics.neighbourhoods.border_search import improve_borders
from solver.heuristics.side_groups import SideGroups, movable_groups
from solver.model.clock import Clock
from solver.model.limits import SolveLimits
from solver.presolve.instance import condense
from solver.search.solve import solve
from tests.support.problem_counts import counts


def _layers_that_share(seed, layers=8, devices=3, memory=None):
    """Return a chain of layers of three operators, all of which read a bias and a mask."""
    rng = random.Random(seed)
    weights = {"table": Weight(rng.randint(1, 40))}
    operators = [
        Operator("source", 5, value_bytes=rng.randint(1, 4)),
        Operator("bias", rng.randint(1, 20), ("source",), value_bytes=rng.randint(1, 6)),
        Operator("mask", rng.randint(1, 20), ("source",), value_bytes=rng.randint(1, 6)),
        Operator("table", rng.randint(1, 9), value_bytes=2, weights=("table",)),
    ]
    last = "source"
    for layer in range(layers):
        reads = [(last, "bias"), (f"a{layer}", "mask"), (f"b{layer}", "table")]
        for name, inputs in zip("abc", reads, strict=True):
            own = f"{name}{layer}"
            weights[own] = Weight(rng.randint(0, 9))
            time_ns, size = rng.randint(4, 30), rng.randint(1, 8)
            operators.append(Operator(own, time_ns, inputs, value_bytes=size, weights=(own,)))
        last = f"c{layer}"
    return PartitionProblem(
        operators=operators,
        weights=weights,
        devices=tuple(Device(f"d{number}", memory) for number in range(devices)),
        interconnect=Interconnect(Link(10**9, 1)),
        memory_model="weights",
    )


def _thirds(problem):
    """Return the plan with as many operators on each device, in their order."""
    devices = [device.name for device in problem.devices]
    count = len(problem.operators)
    return PartitionPlan.from_assignment(
        problem,
        {
            op.name: devices[len(devices) * number // count]
            for number, op in enumerate(problem.operators)
        },
    )


@pytest.mark.parametrize("pieces", [1, 3, 8])
def test_neighbourhoods_are_acyclic_and_hold_the_plan(pieces):
    free = 0
    for seed in range(25):
        problem = _layers_that_share(seed, layers=4 + seed % 5)
        units = condense(problem)
        plan = _thirds(problem)
        stage = [plan.stage_index[problem.operators[own[0]].name] for own in units.members]
        clusters = BorderClusters(
            units, SideGroups.of(units, longest_path(units)), random.Random(seed)
        )
        near = clusters.around(stage, len(plan.device_order), pieces)
        first, last = near.windows.first, near.windows.last
        assert sorted(set(near.cluster_of)) == list(range(len(first)))
        assert all(near.cluster_of[a] <= near.cluster_of[b] for a, b in units.edges), seed
        for unit, own in enumerate(near.cluster_of):
            assert first[own] <= stage[unit] <= last[own] < len(plan.device_order), seed
        by_cluster = {own: stage[unit] for unit, own in enumerate(near.cluster_of)}
        assert all(by_cluster[own] == stage[u] for u, own in enumerate(near.cluster_of)), seed
        free += sum(a < b for a, b in zip(first, last, strict=True))
    assert free > 100


@counts(14, 40)
def test_it_is_never_worse_and_finds_most_optima_of_small_problems(count):
    improved = optimal = started = 0
    for seed in range(count):
        problem = _layers_that_share(seed, layers=5)
        units = condense(problem)
        assert movable_groups(units, SideGroups.of(units, longest_path(units)))
        start = _thirds(problem)
        before = evaluate(problem, start).objective[0]
        best = solve(problem, SolveLimits()).objective
        found = evaluate(problem, improve_borders(units, start))
        assert found.feasible, seed
        assert best <= found.objective[0] <= before, seed
        started += best < before
        improved += found.objective[0] < before
        optimal += found.objective[0] == best
    assert started >= count * 3 // 4
    assert improved == started
    assert optimal >= count * 9 // 10


def test_it_keeps_to_the_memory():
    started = 0
    for seed in range(20):
        roomy = _layers_that_share(seed)
        total = sum(weight.size_bytes for weight in roomy.weights.values())
        problem = _layers_that_share(seed, memory=-(-total * 115 // 300))
        start = solve(problem, SolveLimits(), solver="chain")
        if start.plan is None:
            continue
        found = evaluate(problem, improve_borders(condense(problem), start.plan))
        assert found.feasible, (seed, found.violations)
        assert found.objective <= start.objective_values
        started += 1
    assert started >= 10


def test_one_worker_makes_the_same_plan_every_time():
    problem = _layers_that_share(3, layers=9)
    units = condense(problem)
    start = _thirds(problem)
    assert improve_borders(units, start, seed=7) != start
    assert improve_borders(units, start, seed=7) == improve_borders(units, start, seed=7)


def test_it_returns_plans_that_it_does_not_search():
    names = [f"op{number}" for number in range(9)]
    operators = [
        Operator(name, 3 + number, (names[number - 1],) if number else (), value_bytes=2)
        for number, name in enumerate(names)
    ]
    problem = PartitionProblem(
        operators=operators,
        devices=(Device("d0"), Device("d1")),
        interconnect=Interconnect(Link(10**9, 0)),
        memory_model="weights",
    )
    where = dict.fromkeys(names[:1], "d0") | dict.fromkeys(names[1:], "d1")
    plan = PartitionPlan.from_assignment(problem, where)
    # Nothing here is read by many: stages alone suffice, and are searched elsewhere.
    assert improve_borders(condense(problem), plan) is plan
    shared = _layers_that_share(1)
    start = _thirds(shared)
    reached = evaluate(shared, start).objective[0]
    assert improve_borders(condense(shared), start, target=reached) is start
    assert improve_borders(condense(shared), start, clock=Clock(0.0)) is start
