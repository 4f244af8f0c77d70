"""Bounds of single objectives that need no model."""

from solver import Device, Operator, PartitionProblem, SolveLimits, SolveStatus, Weight, solve
from solver.search.bounds import averages
from tests.support.search_states import state_of, take


def average_bound(problem):
    state = state_of(problem)
    take(state, averages)
    return state.bound


def test_the_latency_of_a_chain_is_known_without_a_model():
    names = [f"op{i}" for i in range(300)]
    problem = PartitionProblem(
        [
            Operator(name, 7, names[max(i - 1, 0) : i], value_bytes=3)
            for i, name in enumerate(names)
        ],
        devices=[Device("p"), Device("q"), Device("r")],
        objective=("latency",),
    )
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
