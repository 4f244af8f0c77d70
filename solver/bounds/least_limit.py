"""Destructive bounding: the least limit on a value that a relaxation does not refute."""

from __future__ import annotations

from collections.abc import Callable

from solver.model.clock import UNLIMITED, Clock


def least_limit(
    refutes: Callable[[int], bool | None],
    low: int,
    high: int,
    *,
    step: int | None = None,
    growth: int = 2,
    parts: int | None = None,
    clock: Clock = UNLIMITED,
) -> int:
    """Return a lower bound: limits below it are refuted, as far as they are looked at.

    Destructive bounding (R. Klein and A. Scholl, "Computing lower bounds by destructive
    improvement", EJOR 112, 1999). A limit that is refuted proves the next one as a bound, so the
    result is right whenever the search ends, and whether or not `refutes` is monotone; if it is,
    the result is the least limit that it leaves, to the precision asked for.

    Parameters
    ----------
    refutes : callable
        Whether no plan has a value of at most a limit. None if that cannot be told, which ends the
        search.
    low : int
        A bound that is known.
    high : int
        The largest bound of interest.
    step : int, optional
        With it, `low` is the first limit to try, and others follow at this distance until one is
        not refuted: where high limits take longer than low ones. Without it `high` - 1 is the
        first. After that the interval is halved.
    growth : int
        Each step is longer than the one before by this factor.
    parts : int, optional
        An interval of the bound's part of this size is not looked into; by default every limit is
        told apart.
    clock : Clock
        Asked before each trial.
    """
    trial = high - 1 if step is None else low
    is_left = False
    while low < high and not clock.is_over:
        refuted = refutes(trial)
        if refuted is None:
            break
        if refuted:
            low = trial + 1
        else:
            high, is_left = trial, True
        if high - low <= (0 if parts is None else low // parts):
            break
        if step is None or is_left:
            trial = (low + high) // 2
        else:
            trial = min(low + step, high - 1)
            step *= growth
    return low
