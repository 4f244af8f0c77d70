"""The program over ideals with several chunks on a device, against brute force."""

from dataclasses import replace

import pytest

from experiments.workloads.reader import load_workload
from solver import Interconnect, SolveLimits, solve
from solver.dp.ideal_program import can_win, why_declined
from solver.evaluation.result import SolveStatus
from solver.model.devices import STAGING_HOST
from tests.support.graphs import chain
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts, some
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(time_limit_s=None, workers=1)


def accepted(seed, chunks, **settings):
    """A random problem without what the program declines."""
    problem = random_problem(seed, draw_chunks=True, **settings)
    links = {
        pair: link for pair, link in problem.interconnect.links.items() if STAGING_HOST in pair
    }
    return problem.replace(
        chunks_per_device=chunks,
        objective=("bottleneck",),
        memory_model="weights",
        interconnect=replace(problem.interconnect, links=links),
    )


def check(problem, label):
    """Tests an answer against brute force; returns its status."""
    result = solve(problem, LIMITS, solver="ideal-dp")
    best = brute_force(to_instance(problem))
    if best is None:
        assert result.status is SolveStatus.INFEASIBLE, f"{label}: {result}"
    elif result.status is SolveStatus.FEASIBLE:
        # A send under peer-to-peer charging is counted once, whoever reads.
        assert problem.interconnect.charging == "peer_to_peer", f"{label}: {result}"
        assert result.objective_bound <= best[0][0] <= result.objective, f"{label}: {best}"
    else:
        assert result.status is SolveStatus.OPTIMAL, f"{label}: {result}"
        assert result.objective_values == best[0], f"{label}: the optimum is {best}, not {result}"
    return result.status


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("block", some(1, of=4))
def test_it_equals_brute_force(block, chunks):
    count = 66 if chunks == 2 else 9
    statuses = [
        check(accepted(seed, chunks, max_operators=5 if seed % 4 == chunks else 4), seed)
        for seed in range(block * count, block * count + count)
    ]
    assert statuses.count(SolveStatus.OPTIMAL) >= count * 6 // 10
    assert SolveStatus.INFEASIBLE in statuses
    assert statuses.count(SolveStatus.FEASIBLE) <= count // 20


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(50))
def test_it_equals_brute_force_on_more_problems(block):
    for seed in range(2_000_000 + block * 40, 2_000_040 + block * 40):
        check(accepted(seed, 2, max_operators=7), seed)
        check(accepted(seed, 3, max_operators=6), seed)


@counts(10, 30, quick=10)
def test_two_chunks_are_never_worse_than_one(count):
    better = 0
    for seed in range(count):
        problem = accepted(seed, 1, min_operators=7, max_operators=7)
        problem = problem.replace(
            interconnect=replace(problem.interconnect, charging="host_staged")
        )
        one = solve(problem, LIMITS, solver="ideal-dp").objective
        two = solve(problem.replace(chunks_per_device=2), LIMITS, solver="ideal-dp").objective
        if one is not None:
            assert one >= two, seed
            better += one > two
    assert better > count // 20


@pytest.mark.parametrize(
    ("name", "chunks", "optimum_ns"),
    [
        ("layer.bert24_training", 2, 39_869_726),
        pytest.param("layer.bert24_training", 3, 39_789_538, marks=pytest.mark.nightly),
        ("layer.gnmt_inference", 2, 31_855_312),
    ],
)
def test_published_workloads(name, chunks, optimum_ns):
    problem = load_workload(f"published:{name}", with_host=False).replace(chunks_per_device=chunks)
    result = solve(problem, LIMITS, solver="ideal-dp")
    assert result.status is SolveStatus.OPTIMAL
    assert result.objective == optimum_ns


def chain_of(count, **settings):
    fixed = {"memory_model": "weights", "chunks_per_device": 2, "interconnect": Interconnect()}
    times = [1 + i % 3 for i in range(count)]
    return chain(count, latency_ns=times, value_bytes=5, **{**fixed, **settings})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"memory_model": "inference"}, "only weights are counted"),
        ({"objective": ("transfer",)}, "only the bottleneck alone"),
        ({"objective": ("bottleneck", "transfer")}, "only the bottleneck alone"),
    ],
)
def test_what_it_declines(settings, reason):
    problem = chain_of(4, **settings)
    result = solve(problem, LIMITS, solver="ideal-dp")
    assert result.status is SolveStatus.UNKNOWN
    assert reason in result.reason == why_declined(problem)
    assert not can_win(problem)


def test_it_gives_up_with_a_bound(monkeypatch):
    problem = chain_of(60)
    optimum = solve(problem, LIMITS, solver="ideal-dp").objective
    bounds = set()
    for effort in (1, 1_000_000, 10_000_000):
        monkeypatch.setattr("solver.dp.ideal_program._MOST_PAIRS", effort)
        result = solve(problem, LIMITS, solver="ideal-dp")
        assert result.status in (SolveStatus.UNKNOWN, SolveStatus.OPTIMAL)
        if result.status is SolveStatus.UNKNOWN:
            assert "candidate stages" in result.reason
            assert result.objective_bound <= optimum
            bounds.add(result.objective_bound)
    assert bounds


def test_when_it_can_win():
    assert can_win(chain_of(20))
    assert can_win(chain_of(20, chunks_per_device=3))
    assert not can_win(chain_of(300))
    assert not can_win(chain_of(20, chunks_per_device=4))
