"""Device orders that are searched one by one where they are too many to list."""

import dataclasses

import pytest

from solver import (
    Device,
    Operator,
    PartitionPlan,
    PartitionProblem,
    SolveLimits,
    SolveStatus,
    solve,
)
from solver.model.clock import UNLIMITED, Clock
from solver.presolve import presolved
from solver.presolve.instance import condense
from solver.search import branch_models
from solver.search.branch_and_bound import BranchAndBound
from solver.search.branch_models import BranchSearch
from solver.search.order_neighbours import FastCuts, neighbouring_orders
from solver.search.steps.branch_and_bound import has_order_neighbours, order_neighbours
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance
from tests.support.search_states import move_step, state_of, take

LIMITS = SolveLimits(workers=1, time_limit_s=60)


def optimum(problem):
    best = brute_force(to_instance(problem))
    return None if best is None else tuple(best[0])


@pytest.fixture
def no_orders(monkeypatch):
    """Let all orders be too many."""
    monkeypatch.setattr(presolved, "_MOST_ORDERS", 0)


@pytest.fixture
def guesses_first(monkeypatch, no_orders):
    """Let guesses be searched before the model of all orders, as where units are many."""

    move_step(monkeypatch, "order neighbours", "refute orders", when=has_order_neighbours)


def test_answers_are_those_of_brute_force(guesses_first):
    for seed in range(40):
        problem = random_problem(seed)
        result = solve(problem, LIMITS, solver="cp-sat")
        best = optimum(problem)
        expected = SolveStatus.INFEASIBLE if best is None else SolveStatus.OPTIMAL
        assert result.status is expected, seed
        assert result.objective_values == best, seed


@pytest.mark.parametrize("drawn", [{"draw_chunks": True}, {"relayed": True}, {"steps": True}])
def test_answers_are_those_of_all_orders(drawn, request):
    """Tests it where brute force takes long; ``test_solvers_oracle.py`` has these answers."""
    problems = [random_problem(seed, max_operators=6, **drawn) for seed in range(25)]
    expected = [solve(problem, LIMITS, solver="cp-sat") for problem in problems]
    request.getfixturevalue("guesses_first")
    for seed, (problem, before) in enumerate(zip(problems, expected, strict=True)):
        result = solve(problem, LIMITS, solver="cp-sat")
        assert result.status is before.status, seed
        if result.status is SolveStatus.OPTIMAL:
            assert result.objective_values == before.objective_values, seed


def test_guesses_alone_prove_nothing(guesses_first, monkeypatch):
    """Tests that bounds stay true when only guesses are searched, all of them to the end."""
    find = BranchSearch.search

    def only_guesses(self, branch, clock, **named):
        if branch.order is not None:
            return find(self, branch, clock, **named)
        branch.spent = True
        return False

    monkeypatch.setattr(BranchSearch, "search", only_guesses)
    searched = 0
    for seed in range(60):
        problem = random_problem(seed)
        best = optimum(problem)
        result = solve(problem, LIMITS, solver="cp-sat")
        if best is None or result.plan is None:
            assert result.status is not SolveStatus.OPTIMAL or best is not None
            continue
        bounds = result.objective_bounds
        assert bounds <= best[: len(bounds)] <= result.objective_values[: len(bounds)], seed
        proven = bounds == result.objective_values
        assert result.status is (SolveStatus.OPTIMAL if proven else SolveStatus.FEASIBLE), seed
        searched += not proven
    assert searched > 5


def two_orders():
    """Return a problem whose best plan has the slow device last, and a plan with it first."""
    ops = (
        Operator("a", {"fast": 10, "slow": 20}),
        Operator("b", {"fast": 90, "slow": 95}, ("a",)),
        Operator("c", {"fast": 10, "slow": 20}, ("b",)),
        Operator("d", {"fast": 10, "slow": 11}, ("c",)),
    )
    devices = (Device("x", device_class="fast"), Device("y", device_class="slow"))
    return PartitionProblem(ops, devices), PartitionPlan(
        {"a": "y", "b": "x", "c": "x", "d": "x"}, ("y", "x")
    )


def search_of(problem, plan):
    state = state_of(problem, plan, LIMITS)
    return state, state.kept(BranchAndBound)


def test_a_closed_guess_closes_nothing_else(no_orders):
    problem, plan = two_orders()
    state, own = search_of(problem, plan)
    guess = own.neighbours.next()
    assert guess.order == (1, 0)
    before = own.branches.least()
    own.search.search(guess, UNLIMITED)
    while guess.is_pending:
        own.search.search(guess, UNLIMITED)
    own.branches.close_covered()
    assert guess.closed
    assert own.branches.best == 110
    assert own.branches.least() == before
    assert not own.branches.are_closed
    assert own.neighbours.next().order == (0, 1)
    own.search.search(own.branches.all[0], UNLIMITED)
    assert own.branches.are_closed
    assert own.branches.least() == own.branches.best == state.best == 100


def test_the_other_order_is_found_by_a_guess(no_orders):
    problem, plan = two_orders()
    state, own = search_of(problem, plan)
    take(state, order_neighbours, Clock(10.0))
    assert own.branches.best == state.best == 100
    assert own.neighbours.next() is None
    assert not own.branches.are_closed


def test_a_slice_that_ranking_uses_up_is_no_error(no_orders):
    problem, plan = two_orders()
    state, own = search_of(problem, plan)
    take(state, order_neighbours, Clock(0.0))
    assert own.branches.best == state.best == 110
    assert own.neighbours.next().is_pending


def test_deterministic_runs_are_equal(guesses_first, monkeypatch):
    # Leaves more to guesses.
    monkeypatch.setattr(branch_models, "_MOST_TERMS", 0)
    for seed in range(12):
        problem = random_problem(seed, min_operators=8, max_operators=10)
        limits = dataclasses.replace(LIMITS, deterministic=True, time_limit_s=0.2)
        first, second = (solve(problem, limits, solver="cp-sat") for _ in range(2))
        assert first.plan == second.plan, seed
        assert first.objective_bounds == second.objective_bounds, seed


def test_neighbours_are_orders_of_the_same_devices():
    found = neighbouring_orders((0, 1, 2), [])
    assert len(found) == 5
    assert all(sorted(order) == [0, 1, 2] for order in found)
    assert neighbouring_orders((0, 1), [2]) == [(0, 2), (1, 0), (2, 1)]
    assert neighbouring_orders((0, 0), []) == []


def test_fast_cuts_know_speed_and_memory():
    problem, plan = two_orders()
    cuts = FastCuts(condense(problem), plan)
    fast, slow = problem.devices
    assert cuts.least_ns([fast, slow]) == pytest.approx(100, rel=1e-3)
    assert cuts.least_ns([slow, fast]) == pytest.approx(110, rel=1e-3)
    assert cuts.least_ns([fast]) == pytest.approx(120, rel=1e-3)
