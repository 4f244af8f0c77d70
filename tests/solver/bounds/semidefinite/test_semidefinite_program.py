"""The semidefinite bound of the bottleneck, against brute force and against plans."""

import dataclasses

from experiments.problems.generators import GeneratorSettings, generate_problem
from solver import Device, Operator, PartitionProblem, SolveLimits, SolveStatus, solve
from solver.bounds.averages import least_average_ns
from solver.bounds.semidefinite import program as semidefinite_bound
from solver.bounds.semidefinite.program import applies, semidefinite_bound_ns
from solver.model.clock import Clock
from solver.model.devices import Interconnect, Link
from solver.presolve import presolved
from solver.presolve.instance import condense
from solver.search.branch_models import BranchSearch
from solver.search.conditions import gap_above
from solver.search.steps.bounds import has_partitions, semidefinite_program
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance
from tests.support.search_states import take


def bottleneck_problem(seed, **drawn):
    problem = random_problem(seed, **drawn)
    return problem.replace(objective=("bottleneck",))


def compare(seeds, **drawn):
    """Compare bounds with optima; return how many were, and how many say more than the average."""
    compared = beyond_average = 0
    for seed in seeds:
        problem = bottleneck_problem(seed, **drawn)
        units = condense(problem)
        slots = min(len(problem.devices), problem.max_devices or len(problem.devices))
        bound = semidefinite_bound_ns(units, slots)
        best = brute_force(to_instance(problem)) if bound else None
        if best is not None:
            assert bound <= best[0][0], seed
            compared += 1
            beyond_average += bound > least_average_ns(units)
    return compared, beyond_average


def test_no_plan_is_below_it():
    compared, beyond_average = compare(range(400), max_operators=6)
    assert compared > 100
    assert beyond_average > 25


def test_it_is_true_of_several_chunks():
    compared, _ = compare(range(60), max_operators=5, draw_chunks=True)
    assert compared > 10


def test_it_is_true_of_relayed_values():
    compared, _ = compare(range(60), max_operators=5, relayed=True)
    assert compared > 15


def test_loads_that_do_not_add_up_are_left_to_others():
    """Where transfers overlap with computing, a load is the largest of three times."""
    problem = bottleneck_problem(1, max_operators=6)
    overlapping = dataclasses.replace(problem.interconnect, overlap=True)
    units = condense(problem.replace(interconnect=overlapping))
    assert not applies(units, 3)
    assert semidefinite_bound_ns(units, 3, at_least_ns=7) == 7


def knot(count, devices):
    """Operators that all read from all before, and send a byte in 100 ns."""
    link = Link(10_000_000, 0)
    return condense(
        PartitionProblem(
            [
                Operator(f"op{i}", 1000, reads=tuple(f"op{j}" for j in range(i)), value_bytes=1)
                for i in range(count)
            ],
            devices=[Device(f"d{i}") for i in range(devices)],
            interconnect=Interconnect(link),
        )
    )


def test_what_everyone_reads_is_paid_for():
    """On two devices nearly all values are sent, whichever operators are on either."""
    units = knot(12, 2)
    bound = semidefinite_bound_ns(units, 2)
    best = brute_force(to_instance(units.problem))
    assert best is not None
    assert 6_300 < bound <= best[0][0]


def test_it_ends_where_more_is_not_in_sight_or_not_needed():
    units = knot(12, 2)
    assert semidefinite_bound_ns(units, 2, at_least_ns=10**9) == 10**9
    assert semidefinite_bound_ns(units, 2, ceiling_ns=6_100) >= 6_100
    assert semidefinite_bound_ns(units, 2, clock=Clock(0.0)) == 0
    # The same arguments give the same answer.
    assert semidefinite_bound_ns(units, 2) == semidefinite_bound_ns(units, 2)


def test_it_says_more_of_wide_graphs_than_their_average_load():
    settings = GeneratorSettings(operators=150, width=30, seed=1)
    problem = generate_problem("layered", settings, 5, slack_percent=15, unequal=False)
    units = condense(problem)
    assert applies(units, 5)
    bound = semidefinite_bound_ns(units, 5)
    assert bound > 1.02 * least_average_ns(units)


def test_searches_that_ask_it_end_with_the_optimum(monkeypatch):
    """Small problems count as large and wide, so that all searches ask before their first model."""
    monkeypatch.setattr(presolved, "_LARGE_FROM", 2)
    monkeypatch.setattr(semidefinite_bound, "_FEWEST_UNITS", 2)
    monkeypatch.setattr(semidefinite_bound, "_STEPS", 40)
    asked, raised = [], []
    search = BranchSearch.search

    def asked_first(searched, branch, *args, **kwargs):
        state = searched._state
        if any(state is other for other in asked) or not (
            gap_above(0)(state) and has_partitions(state)
        ):
            return search(searched, branch, *args, **kwargs)
        asked.append(state)
        before = state.bound
        take(state, semidefinite_program)
        raised.append(state.bound > before)
        return branch.closed or search(searched, branch, *args, **kwargs)

    monkeypatch.setattr(BranchSearch, "search", asked_first)
    solved = 0
    for seed in range(45):
        problem = bottleneck_problem(seed, max_operators=5)
        result = solve(problem, SolveLimits(workers=1), solver="cp-sat")
        best = brute_force(to_instance(problem))
        if best is None:
            assert result.status is SolveStatus.INFEASIBLE, seed
            continue
        assert result.status is SolveStatus.OPTIMAL, seed
        assert result.objective == result.objective_bound == best[0][0], seed
        solved += 1
    assert solved > 14
    assert sum(raised) >= 2, len(raised)
