"""The solver for large graphs."""

import itertools
import time

import networkx as nx
import pytest

from experiments.problems.generators import GeneratorSettings, generate_problem
from solver import Device, Interconnect, Link, solve
from solver.evaluation.evaluate import evaluate
from solver.evaluation.result import SolveStatus
from solver.io.digraph import problem_from_digraph
from solver.model.limits import SolveLimits

SHORT = SolveLimits(time_limit_s=1, workers=1)


def coarse(problem, limits):
    return solve(problem, limits, solver="coarse")


def long_chain(count):
    graph = nx.path_graph(count, nx.DiGraph)
    for i in graph:
        graph.nodes[i].update(order=i, latency_ns=i % 7 * 10, value_bytes=10, storage_bytes=10)
    graph = nx.relabel_nodes(graph, str)
    devices = [Device(f"d{i}") for i in range(8)]
    return problem_from_digraph(graph, devices, interconnect=Interconnect(Link(10**9, 5)))


def test_a_transformer_is_proven():
    problem = generate_problem("transformer", GeneratorSettings(operators=700), 4)
    result = coarse(problem, SolveLimits(time_limit_s=60, workers=1))
    assert result.status is SolveStatus.OPTIMAL
    assert result.gap == 0


def test_a_mixture_of_experts_is_close_to_its_bound():
    settings = GeneratorSettings(operators=2500, experts=64)
    problem = generate_problem("mixture-of-experts", settings, 4)
    seen = []
    limits = SolveLimits(1, workers=1, deterministic=True, on_progress=seen.append)
    result = coarse(problem, limits)
    assert result.gap < 0.1
    assert seen[0].bound == result.objective_bound
    assert seen[-1].incumbent == result.objective


def test_cuts_of_a_large_graph_are_kept():
    settings = GeneratorSettings(operators=1200, experts=32)
    problem = generate_problem("mixture-of-experts", settings, 4)
    cuts = (problem.operators[len(problem.operators) // 2].name,)
    limits = SolveLimits(time_limit_s=0.1, workers=1, deterministic=True)
    result = coarse(problem.replace(cuts=cuts), limits)
    assert result.status is SolveStatus.FEASIBLE
    assert result.objective_bound <= result.objective
    free = coarse(problem, limits)
    assert any(
        "cut after" in line for line in evaluate(problem.replace(cuts=cuts), free.plan).violations
    )


@pytest.mark.parametrize("unequal", [False, True])
def test_unequal_devices_and_chunks_get_plans(unequal):
    settings = GeneratorSettings(operators=300, width=6, seed=2)
    problem = generate_problem("layered", settings, 3, unequal=unequal, slack_percent=60)
    for chunks in (1, 2):
        result = coarse(problem.replace(chunks_per_device=chunks), SHORT)
        assert result.status is SolveStatus.FEASIBLE
        assert result.objective_bound <= result.objective


def test_a_long_chain_is_cut_where_clusters_are_not():
    """Tests that no cut of the execution order is better than the answer, here the optimum."""
    problem = long_chain(3003)
    limits = SolveLimits(time_limit_s=20, workers=1)
    result = coarse(problem, limits)
    assert result.status is SolveStatus.OPTIMAL
    assert result.objective == solve(problem, limits, solver="chain").objective


def test_a_deterministic_run_looks_at_no_clock(monkeypatch):
    """Tests that workers and a slow machine change nothing of the plan."""
    problem = generate_problem("layered", GeneratorSettings(operators=300, width=8, seed=3), 4)
    plans = []
    for workers in (1, 3):
        limits = SolveLimits(time_limit_s=0.3, workers=workers, deterministic=True)
        plans.append(coarse(problem, limits).plan)
    clock = itertools.count(step=1000.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    limits = SolveLimits(time_limit_s=0.3, workers=1, deterministic=True)
    plans.append(coarse(problem, limits).plan)
    assert plans[0] is not None
    assert plans[0] == plans[1] == plans[2]
