"""The search among ideals of borders, against brute force and the search without them."""

import pytest

from solver import SolveLimits, SolveStatus, solve
from solver.bounds.state_space.bound import SkeletonBound
from solver.bounds.windows import StageBounds
from solver.presolve import presolved
from solver.search import branch_models, limit_refutation
from solver.search.limit_refutation import LimitRefutation
from tests.support.graphs import with_values
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem, to_instance

OTHERS = ("contiguous", "least loads", "parts", "local search", "stage boundaries")
"""Steps that would find better plans or bounds before models are made."""


@pytest.fixture(params=[branch_models, limit_refutation])
def rows(monkeypatch, request):
    """Let small graphs be searched as large ones are, and count models with rows for borders.

    Either those of branches, without limits that are refuted before, or those of such limits.
    """
    if request.param is branch_models:
        monkeypatch.setattr(LimitRefutation, "applies", False)
    monkeypatch.setattr(presolved, "_LARGE_FROM", 1)
    # Bounds are poor, so that no plan is near enough to them to leave the ideals out.
    monkeypatch.setattr(branch_models, "closure_bound_ns", lambda *_, at_least, **__: at_least)
    monkeypatch.setattr(StageBounds, "least_bottleneck_ns", lambda *_, **__: 1)
    monkeypatch.setattr(
        SkeletonBound, "least_bottleneck_ns", lambda self, at_least, clock: at_least
    )
    found = []
    add = request.param.add_border_ideals

    def counted(stages, ideals):
        found.append(sum(columns.shape[1] for columns in ideals.inside))
        add(stages, ideals)

    monkeypatch.setattr(request.param, "add_border_ideals", counted)
    return found


def solved(problem):
    limits = SolveLimits(workers=1, time_limit_s=60)
    return solve(problem, limits, solver="cp-sat", without=OTHERS)


def assert_optimal(problem):
    result = solved(problem)
    best = brute_force(to_instance(problem))
    if best is None:
        assert result.status is SolveStatus.INFEASIBLE
    else:
        assert result.status is SolveStatus.OPTIMAL
        assert result.evaluation.objective == best[0]
        assert result.objective_bounds == best[0]


@counts(10, 30)
def test_optima_with_rows_are_those_of_brute_force(count, rows, decoder):
    for seed in range(count):
        assert_optimal(decoder(seed, layers=3))
    for seed in range(count // 2):
        assert_optimal(with_values(decoder(seed, layers=3), seed))
    assert len(rows) > count * 2 // 3


@counts(9, 25)
def test_any_problem_may_be_searched_so(count, rows):
    for seed in range(count):
        assert_optimal(random_problem(seed, objective=("bottleneck",)))


@pytest.mark.parametrize(
    ("rows", "undecided"), [(branch_models, 0), (limit_refutation, 1)], indirect=["rows"]
)
@counts(4, 12)
def test_optima_of_longer_graphs_are_those_without_rows(
    rows, undecided, count, monkeypatch, decoder
):
    for seed in range(count):
        problem = decoder(seed, layers=6 + seed % 3, devices=3)
        with_rows = solved(problem)
        with monkeypatch.context() as patch:
            patch.setattr(presolved, "_LARGE_FROM", 300)
            without = solved(problem)
        assert with_rows.status is without.status
        assert with_rows.objective_bounds == without.objective_bounds
    # In the second search one is decided without such a model.
    assert len(rows) >= count - undecided
