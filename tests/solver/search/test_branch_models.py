"""What the answer of a model says of its branch."""

import pytest

from solver import PartitionPlan
from solver.cp.run import Answer, Question
from solver.model.clock import Clock
from solver.search.branch_models import BranchSearch
from tests.support.graphs import chain
from tests.support.search_states import state_of


def search_and_plan():
    """Return a search of one branch, and a plan with a bottleneck of 30 ns; the best has 20."""
    problem = chain("abc", latency_ns=[10, 10, 20], value_bytes=0)
    state = state_of(problem)
    search = BranchSearch(state)
    return search, PartitionPlan({"a": "p", "b": "q", "c": "q"}, ("p", "q"))


def question(within):
    return Question(None, None, is_hinted=False, within=within, restart_at=None, judge=None)


def concluded(within, answer):
    search, _ = search_and_plan()
    (branch,) = search.branches.all
    search._conclude(branch, question(within), answer)
    return branch


def test_an_optimum_beyond_a_limit_closes_nothing():
    # Plans of 20 to 29 ns may be missing from the model.
    _, plan = search_and_plan()
    branch = concluded(19, Answer(20, plan, 30, is_optimal=True))
    assert (branch.bound, branch.closed) == (20, False)


@pytest.mark.parametrize("within", [None, 30])
def test_an_optimum_of_all_plans_closes_its_branch(within):
    _, plan = search_and_plan()
    branch = concluded(within, Answer(30, plan, 30, is_optimal=True))
    assert (branch.bound, branch.closed) == (30, True)


def test_a_model_without_solutions_says_what_it_was_asked():
    refuted = concluded(19, Answer(None))
    assert (refuted.bound, refuted.closed) == (20, False)
    assert concluded(None, Answer(None)).closed


def test_a_plan_that_is_not_proven_leaves_its_branch_open():
    _, plan = search_and_plan()
    branch = concluded(None, Answer(20, plan, 30))
    assert (branch.bound, branch.closed) == (20, False)


def test_a_branch_whose_windows_take_longer_than_the_time_left_is_not_asked_again():
    search, plan = search_and_plan()
    assert search._state.offer_plan(plan).feasible
    (branch,) = search.branches.all
    search._windows_s = 5.0
    search.search(branch, search._state.clock.slice(1.0))
    assert not (branch.searched or branch.spent)
    search._state.clock = Clock(3.0)
    search.search(branch, search._state.clock)
    assert branch.spent and not branch.searched
    assert not search.branches.pending
