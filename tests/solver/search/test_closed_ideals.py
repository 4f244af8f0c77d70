"""The step of closed ideals where these are many, and what stages hold at least."""

import itertools

import numpy as np
import pytest

from solver.dp import separable
from solver.dp.separable import program_of
from solver.presolve.closures import Closed
from solver.presolve.instance import condense
from solver.search.ideals import closed_ideals, has_closed_ideals
from tests.support.ideal_oracle import least_bottleneck
from tests.support.problem_counts import counts
from tests.support.random_problems import relayed_problem
from tests.support.search_states import bare_state, take


@pytest.mark.parametrize(("most", "share"), [(0, 0.0), (6, 0.5), (12, 0.5)])
@counts(12, 200)
def test_many_ideals_are_merged_or_relaxed(count, most, share, monkeypatch):
    """Tests that clusters are searched in their place, or light sources left out."""
    monkeypatch.setattr(separable, "MOST_IDEALS", most)
    monkeypatch.setattr(separable, "_LIGHT", share)
    told = 0
    for seed in range(count):
        problem = relayed_problem(seed)
        best = least_bottleneck(problem)
        state = bare_state(problem)
        if best is None or not has_closed_ideals(state):
            continue
        take(state, closed_ideals)
        assert state.bound <= best, seed
        assert state.best is None or state.best >= best, seed
        told += state.best == best
    assert told > 0


@counts(20, 200)
def test_stages_hold_no_less_than_their_borders_say(count):
    for seed in range(count):
        units = condense(relayed_problem(seed, most_operators=6, limited=True))
        program = program_of(units, Closed(tuple(range(len(units))), units.edges))
        assert program is not None
        for start, end in itertools.combinations(range(len(program.ideals)), 2):
            ends = program.ideals.containing(start, np.array([end]))
            if len(ends):
                exact = program._held.exact(start, end, 1)
                assert program._least(start, ends)[0] <= exact, (seed, start, end)
