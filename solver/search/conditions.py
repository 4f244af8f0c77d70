"""Conditions under which steps of a search run."""

from __future__ import annotations

from collections.abc import Callable

from solver.dp.ideal_program import can_win
from solver.search.state import SearchState, kept

Condition = Callable[[SearchState], bool]


def all_of(*conditions: Condition) -> Condition:
    """Return whether all conditions hold, asked in this order."""
    return lambda state: all(condition(state) for condition in conditions)


def gap_above(permille: int) -> Condition:
    """Return whether there is a plan, and it is more than this above the bound."""
    return lambda state: state.best is not None and state.has_gap(permille)


def still_gains(step: str) -> Condition:
    """Return whether the last run of a step found a better plan, or there was none."""
    return lambda state: state.still_gains(step)


def is_first(state: SearchState) -> bool:
    """Return True if the first objective is under way."""
    return state.is_first


def may_recompute(state: SearchState) -> bool:
    """Return True if plans may let operators run again."""
    return state.problem.may_recompute


def has_choices(state: SearchState) -> bool:
    """Return True if plans choose within their stages."""
    return state.problem.has_choices


def is_large(state: SearchState) -> bool:
    """Return True if the whole model is too large to be asked at once."""
    return state.presolved.is_large


def is_bottleneck(state: SearchState) -> bool:
    """Return True if the bottleneck is the first objective, and under way."""
    return state.is_first and state.objective == "bottleneck"


def not_(condition: Condition) -> Condition:
    """Return whether a condition does not hold."""
    return lambda state: not condition(state)


@kept
def ideals_are_few(state: SearchState) -> bool:
    """Return True if the program over ideals will likely prove the optimum in about a second."""
    return can_win(state.problem)
