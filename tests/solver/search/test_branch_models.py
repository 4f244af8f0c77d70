"""What the answer of a model says of its branch."""

import pytest

from solver import PartitionPlan
from solver.model.clock import Clock
from solver.search import branch_models
from solver.search.branch_models import BranchSearch
from tests.support.graphs import chain
from tests.support.search_states import state_of


def search_and_plan():
    """Return a search of one branch, and a plan with a bottleneck of 30 ns; the best has 20."""
    problem = chain("abc", latency_ns=[10, 10, 20], value_bytes=0)
    state = state_of(problem)
    search = BranchSearch(state)
    return search, PartitionPlan({"a": "p", "b": "q", "c": "q"}, ("p", "q"))


def test_a_branch_whose_windows_take_longer_than_the_time_left_is_not_asked_again(monkeypatch):
    monkeypatch.setattr(branch_models, "run_model", lambda *_: pytest.fail("was run"))
    search, plan = search_and_plan()
    assert search._state.offer_plan(plan).feasible
    (branch,) = search.branches.all
    search._windows_s = 5.0
    search.search(branch, search._state.clock.slice(1.0))
    assert not branch.spent
    search._state.clock = Clock(3.0)
    search.search(branch, search._state.clock)
    assert branch.spent
    assert not search.branches.pending
