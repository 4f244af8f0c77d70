"""Models that are too large for their worth, or for the time left, are not made."""

from dataclasses import replace

import pytest

from solver import SolveLimits, SolveStatus, solve
from solver.cp.formulation import CpSatFormulation
from solver.cp.hinted_model import OutOfTime
from solver.cp.load_rows import LoadRows
from solver.cp.model_size import link_terms
from solver.cp.stage_model import StageModel
from solver.model.clock import Clock
from solver.presolve import presolved
from solver.presolve.instance import condense
from solver.search import branch_models, rounds
from solver.search.branch_models import BranchSearch
from solver.search.schedule import TIMES
from tests.support.bounds import complete_bounds
from tests.support.graphs import chain
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance
from tests.support.search_states import state_of

LIMITS = SolveLimits(workers=1, time_limit_s=60)


def linked_problems(seeds, **drawn):
    problems = [random_problem(seed, objective=("bottleneck",), **drawn) for seed in seeds]
    return [problem for problem in problems if condense(problem).transfers.depends_on_pair]


@pytest.mark.parametrize("drawn", [{}, {"draw_chunks": True}, {"relayed": True}])
def test_no_model_has_more_terms_than_estimated(drawn, monkeypatch):
    made = []
    times = LoadRows.link_time

    def link_time(self, source, target, entries, part="both"):
        kinds = self.stages.kind
        chosen = [sum(literal is not False for literal in kinds[s]) for s in (source, target)]
        made.append(len(entries) * chosen[0] * chosen[1])
        return times(self, source, target, entries, part)

    monkeypatch.setattr(LoadRows, "link_time", link_time)
    estimated = 0
    total = 0
    for problem in linked_problems(range(200), **drawn):
        units = condense(problem)
        slots, chunks = min(len(problem.devices), len(units)), problem.chunks_per_device
        windows = complete_bounds(units).windows(slots, chunks=chunks)
        if windows.empty:
            continue
        made.clear()
        CpSatFormulation(StageModel(units, windows, slots, chunks=chunks)).objective("bottleneck")
        terms = link_terms(units, windows, slots, chunks)
        assert sum(made) <= terms
        total += sum(made)
        estimated += terms
    assert 0.5 * estimated < total


def test_links_that_are_alike_have_no_terms():
    for seed in range(30):
        units = condense(problem := random_problem(seed))
        if not units.transfers.depends_on_pair:
            slots = min(len(problem.devices), len(units))
            assert link_terms(units, complete_bounds(units).windows(slots), slots) == 0


def test_too_large_a_model_is_not_made_and_leaves_a_true_bound(monkeypatch):
    monkeypatch.setattr(presolved, "_MOST_ORDERS", 0)
    monkeypatch.setattr(branch_models, "_MOST_TERMS", 0)
    formulation = branch_models.CpSatFormulation
    is_open = 0

    def small(units, windows, slots, **named):
        assert named["order"] is not None or not link_terms(units, windows, slots)
        return formulation(units, windows, slots, **named)

    monkeypatch.setattr(branch_models, "CpSatFormulation", small)
    # Without a plan a large model is better than none.
    monkeypatch.setattr(rounds, "TIMES", replace(TIMES, terms_of_use=0.0))
    for problem in linked_problems(range(200)):
        best = brute_force(to_instance(problem))
        if best is None:
            continue
        result = solve(problem, LIMITS, solver="cp-sat")
        if result.status is SolveStatus.UNKNOWN:
            continue
        assert result.objective_bounds[0] <= best[0][0] <= result.objective_values[0]
        proven = result.objective_bounds == result.objective_values
        assert result.status is (SolveStatus.OPTIMAL if proven else SolveStatus.FEASIBLE)
        is_open += not proven
    assert is_open > 10


class EndsAfterLooks(Clock):
    """A clock that is over once it was looked at so often."""

    __slots__ = ("looks",)

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    @property
    def is_over(self):
        self.looks -= 1
        return self.looks < 0


def test_the_making_of_a_model_ends_with_the_clock_wherever_it_is():
    units = condense(chain("abcdef", latency_ns=10, value_bytes=10))
    windows = complete_bounds(units).windows(2)
    most = 10_000
    clock = EndsAfterLooks(most)
    CpSatFormulation(StageModel(units, windows, 2, clock=clock)).objective("bottleneck")
    needed = most - clock.looks
    assert needed > 20
    for looks in range(needed):
        with pytest.raises(OutOfTime):
            stages = StageModel(units, windows, 2, clock=EndsAfterLooks(looks))
            CpSatFormulation(stages).objective("bottleneck")


def test_what_searches_a_model_that_is_not_made_in_time_says_nothing(monkeypatch):
    problem = chain("abc", latency_ns=10, value_bytes=0)
    state = state_of(problem)
    search = BranchSearch(state)
    (branch,) = search.branches.all
    monkeypatch.setattr(branch_models, "run_model", lambda *_: pytest.fail("was run"))
    state.clock = Clock(0.0)
    search.search(branch, Clock(10.0))
    assert not branch.closed
