"""Destructive bounding: the least limit that a relaxation does not refute."""

from __future__ import annotations

from collections.abc import Callable

from solver.model.clock import UNLIMITED, Clock


def least_limit(
    refutes: Callable[[int], bool | None],
    low: int,
    high: int,
    *,
    step: int | None = None,
    parts: int | None = None,
    clock: Clock = UNLIMITED,
) -> int:
    """Return a lower bound below which every tried limit is refuted.

    Destructive bounding (R. Klein and A. Scholl, "Computing lower bounds by destructive
    improvement", EJOR 112, 1999). A refuted limit proves the next one as a bound. So the result is
    valid whenever the search ends, and whether or not `refutes` is monotone. If it is, the result
    is the least limit not refuted, to the requested precision.

    `refutes` returns True if no plan has a value of at most the limit, and None if undecided, which
    ends the search. `low` is a known bound, `high` the largest of interest.

    With `step` the first trial is `low`, and others follow at this distance, doubled each time,
    until one is not refuted: for use where high limits take longer than low ones.
    Without it the first trial is `high` - 1. Bisection follows, to an interval of the bound /
    `parts` or, by default, to a single limit. The clock is asked before each trial.
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
            step *= 2
    return low
