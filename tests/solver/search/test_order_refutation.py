"""Short models and linear programs of all device orders before the search, against brute force."""

import pytest

from solver import SolveLimits, SolveStatus, solve
from solver.bounds.parts import decomposition
from solver.search import order_refutation as refutation
from solver.search.branch_models import BranchSearch
from solver.search.limit_refutation import LimitRefutation
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(workers=1, time_limit_s=60)
OTHERS = ("borders", "lagrangian", "state space")
"""Steps that would raise the bound before orders are asked."""


@pytest.fixture
def relaxed(monkeypatch):
    """Take small problems for large ones; keep what the programs say of each order."""
    monkeypatch.setattr("solver.presolve.presolved._LARGE_FROM", 0)
    said = []
    relax = BranchSearch.relax

    def recorded(search, branch, clock, programs=6):
        relax(search, branch, clock, programs)
        said.append((programs, branch.order, branch.bound, branch.closed, search.branches.best))

    monkeypatch.setattr(BranchSearch, "relax", recorded)
    return said


@pytest.fixture(autouse=True)
def _without_others(monkeypatch):
    """Leave all orders to be asked, also those that else would be refuted before."""
    monkeypatch.setattr(decomposition, "applies", lambda _: False)
    monkeypatch.setattr(LimitRefutation, "applies", False)


@pytest.fixture
def without_probes(monkeypatch):
    """Ask linear programs alone, also of orders that windows refute."""
    monkeypatch.setattr(refutation, "_MOST_IN_VAIN", 0)
    monkeypatch.setattr(BranchSearch, "has_windows", lambda *_: True)


@counts(54, 160)
@pytest.mark.usefixtures("without_probes")
def test_optima_are_those_of_brute_force(count, relaxed):
    solved = 0
    for seed in range(count):
        problem = random_problem(seed).replace(objective=("bottleneck",))
        before = len(relaxed)
        result = solve(problem, LIMITS, solver="cp-sat", without=OTHERS)
        best = brute_force(to_instance(problem))
        assert result.status is (SolveStatus.OPTIMAL if best else SolveStatus.INFEASIBLE), seed
        if best:
            optimum = int(best[0][0])
            assert result.objective == optimum, seed
            solved += len(relaxed) > before
            for _, _, bound, closed, known in relaxed[before:]:
                assert closed == (bound >= known)
    assert solved > count // 10
    first = [entry for entry in relaxed if entry[0] == 1]
    assert sum(closed for _, _, _, closed, _ in first) > count // 10


@counts(27, 80)
def test_short_models_refute_what_brute_force_does(count, monkeypatch):
    """Tests that orders that a short model closes have no better plan, and others may follow."""
    monkeypatch.setattr("solver.presolve.presolved._LARGE_FROM", 0)
    monkeypatch.setattr(refutation, "_MOST_PROGRAMS_IN_VAIN", 0)
    said = []
    search = BranchSearch.search

    def recorded(self, branch, clock, **settings):
        has_said = search(self, branch, clock, **settings)
        if settings.get("is_probe"):
            said.append(branch.closed)
        return has_said

    monkeypatch.setattr(BranchSearch, "search", recorded)
    for seed in range(count):
        problem = random_problem(seed).replace(objective=("bottleneck",))
        result = solve(problem, LIMITS, solver="cp-sat")
        best = brute_force(to_instance(problem))
        assert result.status is (SolveStatus.OPTIMAL if best else SolveStatus.INFEASIBLE), seed
        assert not best or result.objective == int(best[0][0]), seed
    assert sum(said) > count // 10


def test_short_models_in_vain_are_the_last_ones(monkeypatch):
    """Tests that three without an answer end them."""
    probed = []
    monkeypatch.setattr("solver.presolve.presolved._LARGE_FROM", 0)
    monkeypatch.setattr(BranchSearch, "relax", lambda *_, **__: None)

    def in_vain(self, branch, clock, **settings):
        if settings.get("is_probe"):
            probed.append(branch.order)
        else:
            branch.closed = True
        return False

    monkeypatch.setattr(BranchSearch, "search", in_vain)
    most = 0
    for seed in range(25):
        solve(random_problem(seed).replace(objective=("bottleneck",)), LIMITS, solver="cp-sat")
        assert len(probed) <= 3, seed
        most = max(most, len(probed))
        probed.clear()
    assert most == 3


def test_orders_without_windows_are_asked_nothing(monkeypatch):
    """Tests that neither a model nor a program is made where units have no positions left."""
    monkeypatch.setattr("solver.presolve.presolved._LARGE_FROM", 0)
    monkeypatch.setattr(BranchSearch, "has_windows", lambda *_: False)
    asked = []
    monkeypatch.setattr(BranchSearch, "relax", lambda _, branch, *__, **___: asked.append(branch))
    monkeypatch.setattr(BranchSearch, "search", lambda _, branch, *__, **___: asked.append(branch))
    closed = 0
    original = refutation.refute_orders

    def noted(search, clock):
        nonlocal closed
        several = sum(search.can_relax(branch) for branch in search.branches.pending) > 1
        original(search, clock)
        if several:
            assert search.branches.are_closed
            closed += 1
        for branch in search.branches.all:
            branch.closed = True

    monkeypatch.setattr("solver.search.branch_and_bound.refute_orders", noted)
    for seed in range(25):
        solve(random_problem(seed).replace(objective=("bottleneck",)), LIMITS, solver="cp-sat")
    assert closed > 3
    assert not asked


@pytest.mark.usefixtures("without_probes")
def test_the_best_bounds_are_searched_first(relaxed, monkeypatch):
    """Tests that the incumbent's order stays first, and the others go by what is proven."""
    orders = []
    original = refutation.refute_orders

    def noted(search, clock):
        def single():
            return [branch for branch in search.branches.all if branch.order is not None]

        places = [branch.order is None for branch in search.branches.all]
        first = single()[:1]
        original(search, clock)
        assert places == [branch.order is None for branch in search.branches.all]
        assert single()[:1] == first
        bounds = [branch.bound for branch in single()[1:]]
        assert bounds == sorted(bounds)
        orders.append(len(set(bounds)))

    monkeypatch.setattr("solver.search.branch_and_bound.refute_orders", noted)
    for seed in range(25):
        solve(random_problem(seed).replace(objective=("bottleneck",)), LIMITS, solver="cp-sat")
    assert max(orders) > 1
