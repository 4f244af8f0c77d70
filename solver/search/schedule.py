"""Steps of a search, their order, and the time of each.

A search goes through its schedule in rounds. In the first round a step has `share` units of time;
a unit is `UNIT_S` and `UNIT_S_PER_UNIT` for each unit of the graph, about the need of a step to say
anything. In every further round it has twice as much. A step that ended before its time was over
has said all that it can, and is not asked again unless it `repeats`. So the state after some
time does not depend on the limit, which ends the search and nothing else.

This is the only place with shares of time and caps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from solver.model.clock import Clock
from solver.search import bounds, branch_and_bound, heuristics, multilevel, presolve, recomputation
from solver.search.branches import SearchTimes
from solver.search.conditions import (
    Condition,
    all_of,
    gap_above,
    has_choices,
    ideals_are_few,
    is_bottleneck,
    is_first,
    is_large,
    may_recompute,
    not_,
    still_gains,
)
from solver.search.findings import Finding
from solver.search.ideals import closed_ideals, has_closed_ideals, ideals
from solver.search.state import SearchState

UNIT_S: Final = 0.5
UNIT_S_PER_UNIT: Final = 0.0005
GROWTH: Final = 2
"""Of the time of a step, from round to round."""
REST: Final = 0.95
"""Of the time that is left: large plans take a moment to be judged."""
MOST_CUT_S: Final = 10.0
CUT_SHARE: Final = 0.8
"""Of the time that is left, and at most, for a cut of a large graph at all places."""
TIMES: Final = SearchTimes(
    first_s=4.0, first_s_per_unit=0.001, growth=4, making=0.5, terms=0.15, terms_of_use=0.5
)
MOST_PLACES: Final = 200_000
"""Units times devices. With more, what exact steps have to know of each place takes most of a
minute; multilevel search and its bound take seconds."""
FEW_PLACES: Final = 30_000
"""Exact steps begin at once with no more than these."""
PLACES_PER_S: Final = 10_000
"""What exact steps have to know takes a second for these: they do not begin what cannot end."""


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the schedule; rows of one name are one step, asked at two places.

    `run` yields findings until it has said all that it can, or its clock is over.
    """

    name: str
    run: Callable[[SearchState, Clock], Iterator[Finding]]
    share: float = math.inf
    """Units of time in the first round; infinite for a step that the limit alone ends."""
    cap_s: float = math.inf
    """Seconds, or units of work, over all rounds."""
    when: Condition = lambda state: True
    """True if the step is of use, as far as the state knows."""
    repeats: bool = False
    """It may say more although it ended early: about another incumbent, or another branch."""
    is_baseline: bool = False
    """It runs even if no time is left: no answer is worse than its plan."""
    rest: float = 1.0
    """Part of the time left, if the limit alone ends it: its plan is evaluated in the rest."""

    @property
    def ends_with_limit(self) -> bool:
        """True if the limit alone ends it: it has all the time there is, once."""
        return self.share == math.inf


# -- conditions that depend on the time there is ----------------------------------------------


def can_search_exactly(state: SearchState) -> bool:
    """Return True if places are few enough for exact steps, and these can say something in time."""
    if state.searches_exactly is None:
        # What cannot end within the limit is not begun.
        most = min(MOST_PLACES, max(FEW_PLACES, PLACES_PER_S * state.clock.left_s))
        state.searches_exactly = presolve.has_few_places(state, int(most))
    return state.searches_exactly


def cut_is_quick(state: SearchState) -> bool:
    """Return True if the execution order can be cut at all places in a part of the time.

    Cuts between clusters are nearly as good.
    """
    most_s = min(MOST_CUT_S, CUT_SHARE * state.clock.left_s)
    return multilevel.levels(state).whole_cut_s <= most_s


# -- rows --------------------------------------------------------------------------------------

PRESOLVE: Final = (
    Step("pins", presolve.pins, when=is_first, is_baseline=True),
    Step("byte sums", presolve.byte_sums, when=is_first, is_baseline=True),
)
GREEDY: Final = Step("greedy", heuristics.greedy, when=is_first, is_baseline=True)
CONTIGUOUS: Final = Step("contiguous", heuristics.contiguous, when=is_first, is_baseline=True)
IDEALS: Final = Step("ideals", ideals, cap_s=15.0, when=all_of(is_first, ideals_are_few))
EXACT: Final = (
    CONTIGUOUS,
    GREEDY,
    Step("dominance", presolve.dominance, when=is_first),
    Step("averages", bounds.averages, is_baseline=True),
    Step(
        "closed ideals",
        closed_ideals,
        share=48.0,
        when=all_of(is_bottleneck, gap_above(0), has_closed_ideals),
    ),
    Step("positions", bounds.positions, when=is_first),
    Step("borders", bounds.borders, when=is_bottleneck),
    Step(
        "least loads",
        bounds.least_loads,
        share=2.0,
        when=all_of(is_bottleneck, gap_above(10), bounds.has_least_loads),
    ),
    Step(
        "without host",
        heuristics.without_host,
        share=20.0,
        when=all_of(is_bottleneck, heuristics.can_do_without_host, still_gains("without host")),
    ),
    Step(
        "local search",
        heuristics.local_search,
        share=3.0,
        when=all_of(is_first, lambda state: state.has_gap(10), still_gains("local search")),
    ),
    Step(
        "rotations",
        heuristics.rotations,
        share=4.0,
        when=all_of(is_bottleneck, gap_above(10), heuristics.has_rotations),
    ),
    Step(
        "parts",
        bounds.parts,
        share=3.0,
        when=all_of(is_bottleneck, is_large, gap_above(10), bounds.has_shared_parts),
    ),
    # A search begins anew in each round, so its first slice is long.
    Step(
        "branches",
        branch_and_bound.branch_and_bound,
        share=32.0,
        when=branch_and_bound.has_open_branches,
        repeats=True,
    ),
)
MULTILEVEL: Final = (
    Step("averages of units", multilevel.averages, when=is_first),
    Step("contiguous", heuristics.contiguous, when=all_of(is_first, cut_is_quick)),
    Step("cluster cuts", multilevel.cluster_cuts, when=is_first),
    Step(
        "cluster cuts",
        multilevel.cluster_cuts,
        when=all_of(is_first, multilevel.has_no_plan),
        is_baseline=True,
    ),
    Step("greedy", heuristics.greedy, when=all_of(is_first, multilevel.has_no_plan)),
    Step("unit cuts", multilevel.unit_cuts, when=all_of(is_first, multilevel.has_no_plan)),
    Step("clusters annealed", multilevel.anneal, when=all_of(is_first, gap_above(0)), rest=REST),
)


def _only(condition: Condition, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return steps that wait for one more condition, which is asked first."""
    return tuple(replace(step, when=all_of(condition, step.when)) for step in steps)


def _steps(names: str) -> tuple[Step, ...]:
    """Return the rows of the exact search with some names, in its order."""
    chosen = names.split(", ")
    return tuple(step for step in EXACT if step.name in chosen)


_AGAIN: Final = all_of(is_first, may_recompute)
_RECOMPUTED_CUTS: Final = Step(
    "recomputed cuts", recomputation.recomputed_cuts, share=16.0, when=_AGAIN
)
_CUTS_WITH_EVERYTHING_AGAIN: Final = Step(
    "cuts with everything again",
    recomputation.cuts_with_everything_again,
    share=16.0,
    when=all_of(_AGAIN, recomputation.has_wide_gap, recomputation.may_run_everything_again),
)
_RECOMPUTED_STAGES: Final = Step(
    "recomputed stages",
    recomputation.recomputed_stages,
    share=32.0,
    when=all_of(_AGAIN, recomputation.has_recomputed_stages),
)
_WITHOUT_LIMITS: Final = Step(
    "without limits", recomputation.without_limits, share=16.0, when=_AGAIN
)
CHOICES: Final = (
    # Where nothing has to run again, it often proves the optimum before cuts are estimated.
    *_only(recomputation.is_short_without_limits, (_WITHOUT_LIMITS,)),
    CONTIGUOUS,
    GREEDY,
    Step("averages", bounds.averages, is_baseline=True),
    *_only(recomputation.needs_nothing_again, (_WITHOUT_LIMITS,)),
    _RECOMPUTED_CUTS,
    _RECOMPUTED_STAGES,
    # Where a small model follows, its search is the faster without that plan.
    *_only(not_(recomputation.has_few_rows), (_CUTS_WITH_EVERYTHING_AGAIN,)),
    *_only(recomputation.has_model, _steps("positions, borders, least loads, branches")),
)
"""Where plans choose within stages. Bounds count what is held whatever is chosen; what merges units
or moves them by what they hold does not know of a choice."""

_LARGE: Final = not_(can_search_exactly)
_FIXED: Final = not_(has_choices)
SCHEDULES: Final[Mapping[str, tuple[Step, ...]]] = MappingProxyType(
    {
        "greedy": (GREEDY,),
        "chain": (CONTIGUOUS, _RECOMPUTED_CUTS, _CUTS_WITH_EVERYTHING_AGAIN),
        "ideal-dp": (Step("ideals", ideals, when=is_first),),
        "coarse": (PRESOLVE[0], *MULTILEVEL),
        "cp-sat": (PRESOLVE[0], *_only(has_choices, CHOICES), *_only(_FIXED, EXACT)),
        "auto": (
            *PRESOLVE,
            *_only(has_choices, CHOICES),
            *_only(all_of(_FIXED, _LARGE), MULTILEVEL),
            *_only(all_of(_FIXED, can_search_exactly), (IDEALS, *EXACT)),
        ),
    }
)
"""The schedule of each solver."""
