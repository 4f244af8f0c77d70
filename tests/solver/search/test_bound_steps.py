"""Bounds of single objectives that need no model."""

from solver import Device, Operator, PartitionProblem, SolveLimits, SolveStatus, Weight, solve
from solver.search.bounds import averages
from tests.support.graphs import chain
from tests.support.search_states import state_of, take


def average_bound(problem):
    state = state_of(problem)
    take(state, averages)
    return state.bound


def test_the_latency_of_a_chain_is_known_without_a_model():
    problem = chain(300, latency_ns=7, value_bytes=3, objective="latency")
    assert average_bound(problem) == 2100
    result = solve(problem, SolveLimits(workers=1))
    assert (result.status, result.objective) == (SolveStatus.OPTIMAL, 2100)


def test_the_peak_of_memory_is_at_least_that_of_an_even_share():
    names = [f"op{i}" for i in range(4)]
    problem = PartitionProblem(
        [Operator(name, 1, weights=(name,)) for name in names],
        devices=[Device("p", 10), Device("q", 10)],
        weights={name: Weight(4) for name in names},
        memory_model="weights",
        objective=("peak_memory",),
    )
    assert average_bound(problem) == 800
    assert solve(problem, SolveLimits(workers=1)).objective == 800
