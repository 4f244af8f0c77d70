"""What is shared while it is held, and let go of afterwards."""

import gc
import weakref

from solver.presolve.dominance import simplify
from solver.presolve.instance import condense
from tests.support.random_problems import random_problem


def test_it_is_derived_once_while_it_is_held():
    problem = random_problem(1)
    units = condense(problem)
    simplified = simplify(units)
    assert condense(problem) is units
    assert simplify(condense(problem)) is simplified


def test_equal_problems_have_their_own():
    assert condense(first := random_problem(1)) is not condense(second := random_problem(1))
    assert first is not second


def test_nothing_is_kept_alive():
    problem = random_problem(1)
    gone = [weakref.ref(problem), weakref.ref(units := condense(problem))]
    gone.append(weakref.ref(simplify(units)))
    del problem, units
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_each_of_many_problems_in_turn_has_its_own():
    """Tests that what comes to lie where another problem lay is not taken for that."""
    for seed in range(200):
        problem = random_problem(seed)
        assert condense(problem).problem is problem
