"""The program over ideals with several chunks on a device, against brute force."""

import pytest

from experiments.workloads.fields import InstanceSettings
from experiments.workloads.reader import load_instance
from solver import Interconnect, SolveLimits, solve
from solver.dp.ideal_program import can_win, why_declined
from solver.evaluation.result import SolveStatus
from tests.support.graphs import chain
from tests.support.ideal_cases import check_ideals, without_links
from tests.support.problem_counts import some
from tests.support.random_problems import random_problem

LIMITS = SolveLimits(time_limit_s=None, workers=1)


def accepted(seed, chunks, **settings):
    """A random problem without what the program declines."""
    problem = random_problem(seed, draw_chunks=True, **settings)
    settings = {"objective": ("bottleneck",), "memory_model": "weights"}
    return without_links(problem).replace(chunks_per_device=chunks, **settings)


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("block", some(1, of=50))
def test_it_equals_brute_force(block, chunks):
    count = 66 if chunks == 2 else 9
    most = 4 if block < 4 else 6
    statuses = [
        check_ideals(accepted(seed, chunks, max_operators=most + (seed % 4 == chunks)), seed)
        for seed in range(block * count, block * count + count)
    ]
    assert statuses.count(SolveStatus.OPTIMAL) >= count * 6 // 10
    assert SolveStatus.INFEASIBLE in statuses and SolveStatus.UNKNOWN not in statuses
    assert statuses.count(SolveStatus.FEASIBLE) <= count // 20 or block > 3


@pytest.mark.parametrize(
    ("name", "chunks", "optimum_ns"),
    [
        ("layer.bert24_training", 2, 39_869_726),
        pytest.param("layer.bert24_training", 3, 39_789_538, marks=pytest.mark.nightly),
        ("layer.gnmt_inference", 2, 31_855_312),
    ],
)
def test_published_workloads(name, chunks, optimum_ns):
    problem = load_instance(f"published:{name}", InstanceSettings(with_host=False))
    problem = problem.replace(chunks_per_device=chunks)
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
