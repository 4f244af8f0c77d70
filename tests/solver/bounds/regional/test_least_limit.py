"""The least limit that is not refuted, against trying every one."""

import random

import pytest

from solver.bounds.regional.least_limit import least_limit
from solver.model.clock import Clock

STEPS = (None, 1, 3, 50)


@pytest.mark.parametrize("step", STEPS)
def test_it_is_the_first_limit_that_is_left(step):
    for low, high in ((0, 1), (0, 40), (7, 30), (5, 5)):
        for least in range(low - 2, high + 3):
            found = least_limit(least.__gt__, low, high, step=step)
            assert found == min(max(least, low), high)


@pytest.mark.parametrize("step", STEPS)
def test_precision_leaves_a_part_of_the_bound(step):
    for least in range(1_000, 2_000, 7):
        found = least_limit(least.__gt__, 1_000, 3_000, step=step, parts=50)
        assert least - found // 50 <= found <= least


@pytest.mark.parametrize("step", STEPS)
def test_a_bound_follows_a_limit_that_was_refuted(step):
    draws = random.Random(5)
    for _ in range(300):
        # Not monotone, and without an answer now and then.
        answers = [draws.choice((True, True, False, None)) for _ in range(30)]
        asked = []

        def refutes(limit, answers=answers, asked=asked):
            asked.append(limit)
            return answers[limit]

        found = least_limit(refutes, 0, 30, step=step)
        refuted = [limit for limit in asked if answers[limit]]
        assert found == max(refuted, default=-1) + 1
        if None in (answers[limit] for limit in asked):
            assert answers[asked[-1]] is None


def test_trials_are_few_and_begin_low_with_a_step_and_high_without():
    for step, first in ((5, 100), (None, 99_999)):
        asked = []

        def refutes(limit, asked=asked):
            asked.append(limit)
            return limit < 60_000

        assert least_limit(refutes, 100, 100_000, step=step) == 60_000
        assert asked[0] == first and len(asked) <= 35


def test_there_is_no_trial_when_time_is_over():
    asked = []

    def refutes(limit):
        asked.append(limit)
        return True

    assert least_limit(refutes, 7, 100, step=1, clock=Clock(0.0)) == 7
    assert not asked
