"""Which branch has the next turn, and how long it is."""

import pytest

from solver import Device, SolveLimits
from solver.cp.run import Answer
from solver.search import branch_models
from solver.search.branch_models import BranchSearch
from solver.search.schedule import TIMES
from tests.support.graphs import chain
from tests.support.search_states import state_of


def test_a_run_that_gives_up_early_has_had_its_turn(monkeypatch):
    # Presolve of CP-SAT does, once it sees that its time will not do.
    slices = []

    def gives_up(question, limits, clock, report):
        slices.append(clock.left_s)
        clock.charge(0.6 * clock.left_s)
        return Answer(0)

    monkeypatch.setattr(branch_models, "run_model", gives_up)
    devices = [Device("p", 100), Device("q", 200), Device("r", 300)]
    problem = chain("abc", latency_ns=10, value_bytes=0, devices=devices)
    state = state_of(problem, limits=SolveLimits(100.0, deterministic=True))
    first_s = TIMES.first_s + TIMES.first_s_per_unit * len(state.presolved.units)
    search = BranchSearch(state)
    count = len(search.branches.all)
    assert count > 2
    search.search_all(state.clock)
    assert slices[:count] == pytest.approx([first_s] * count)
    assert slices[count] == pytest.approx(TIMES.growth * first_s)
