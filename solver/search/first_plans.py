"""Finds the first incumbent, which models start from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from solver.bounds.borders.bound import BorderBound
from solver.bounds.objectives import ObjectiveBounds
from solver.dp.contiguous.solver import contiguous_plan
from solver.dp.ideal_program import solve_ideals
from solver.evaluation.evaluate import evaluate
from solver.evaluation.result import SolveResult, SolveStatus
from solver.heuristics.cheap_borders import plan_at_cheap_borders
from solver.heuristics.greedy import greedy_plan
from solver.heuristics.local_search import better_plan, first_incumbents
from solver.heuristics.neighbourhoods.border_search import improve_borders, plan_near
from solver.heuristics.neighbourhoods.stage_boundaries import improve_by_neighbourhoods
from solver.heuristics.order_search import search_orders
from solver.model.clock import Clock
from solver.model.cuts import is_hand_made
from solver.model.limits import SolveLimits
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.presolve.presolved import RestatedProblem
from solver.search.branch_search import wall_share
from solver.search.incumbent import Incumbent

_NEAR_PERMILLE = 10
"""An incumbent so near its bound is good enough to start with."""
_WAY_PERMYRIAD = (5, 20, 80, 320)
"""How far above the bound on borders its own plans are looked for, until they keep to that."""
_NEAR_BORDERS_SHARE = 0.05
"""Of the time left, at most this much goes into plans near such a way."""
_WITHOUT_HOST_SHARE = 0.4
"""Of the time left, at most this much goes into plans without a host."""
_ORDERS_S = 8.0
_ORDERS_SHARE = 0.25
"""At most so many seconds, and this much of the time left, go into cuts of several orders."""
_CHEAP_BORDERS_S = 5.0
_CHEAP_BORDERS_SHARE = 0.1
"""At most so many seconds, and this much of the time left, go into plans between cheap borders."""
_LOCAL_SEARCH_SHARE = 0.12
"""Of the time left, at most this much goes into local search, and as much into sub-solves."""
_FEW_MOVES_PER_UNIT = 100
"""Moves of local search on smaller graphs, which the model often solves at once."""
_PARTS_SHARE = 0.3
"""Of the time left, at most this much goes into what parts of the graph cost."""
_AROUND_S = 1.0
_AROUND_SHARE = 0.05
"""At most so many seconds, and this much of the time left, go into what is around a load."""
_PRICES_SHARE = 0.1
_MANY_ORDERS_PRICES_SHARE = 0.3
"""Of the time left, at most this much goes into the bound by prices; the other where no model of a
single order says anything of all plans."""
_IDEALS_SHARE = 0.5
"""Of the time left, at most this much goes into listing stages between ideals."""
_IDEALS_BOUND_SHARE = 0.8
"""At most this much goes into that and the bound from them."""
_WIDE_PERMILLE = 20
"""Models close smaller gaps before such sub-solves are worth their time."""
_BORDERS_SHARE = 0.3
"""Of the time left, at most this much goes into sub-solves of all borders at once."""
_NEIGHBOURHOODS_S = 6.0
_NEIGHBOURHOODS = 40
"""Most seconds, or sub-solves of a deterministic run, that improve the first incumbent."""


def plans_of_others(
    problem: PartitionProblem, clock: Clock, known: SolveResult | None
) -> list[PartitionPlan]:
    """Return the plans of another solver's answer, if there is one, and of the baselines.

    These have all the time that they have by themselves, so that no answer is worse than theirs.
    """
    plans: list[PartitionPlan] = []
    if known is not None and known.status is SolveStatus.FEASIBLE:
        assert known.plan is not None
        plans.append(known.plan)
    for plan in (contiguous_plan(problem, wall_share(clock, 1.0)), greedy_plan(problem)):
        if plan is not None and evaluate(problem, plan).feasible:
            plans.append(plan)
    return plans


class FirstPlans:
    """Finds the first incumbent of one run of the exact solver.

    Parameters
    ----------
    restated : RestatedProblem
    bounds : ObjectiveBounds
        Says when a plan is good enough; learns from the incumbent.
    incumbent : Incumbent
        Is offered every plan.
    limits : SolveLimits
    clock : Clock
    known : sequence of PartitionPlan
        Plans of other solvers.
    solve : callable
        The exact solver itself, for a smaller problem: of limits and a clock of its own.
    """

    def __init__(
        self,
        restated: RestatedProblem,
        bounds: ObjectiveBounds,
        incumbent: Incumbent,
        limits: SolveLimits,
        clock: Clock,
        known: Sequence[PartitionPlan],
        solve: Callable[[PartitionProblem, SolveLimits, Clock], SolveResult],
    ) -> None:
        self._restated = restated
        self._problem = restated.problem
        self._bounds = bounds
        self._incumbent = incumbent
        self._limits = limits
        self._clock = clock
        self._solve = solve
        self._known = known

    def find(self) -> None:
        """Offer plans of all sources, and what local search and sub-solves make of them."""
        target = self._bounds.least(self._problem.objective[0])
        starts: list[PartitionPlan] = []
        for source in (
            self._known_plans,
            self._plans_along_borders,
            self._plan_without_host,
            self._cut_of_orders,
            self._plan_at_cheap_borders,
        ):
            for plan in source():
                # Only such plans are hints for the model of the simplified problem.
                starts.append(self._restated.simplified.repair(plan))
                self._incumbent.offer(starts[-1])
        before = self._incumbent.value(0)
        if before is not None and before <= target * (1000 + _NEAR_PERMILLE) // 1000:
            # The model closes so small a gap sooner than a search that proves nothing.
            return
        self._improve_by_moves(starts, target)
        value = self._incumbent.value(0)
        many_orders = self._restated.orders(every_length=False) is None
        parts_say_more = self._restated.is_large and self._look_at_parts()
        if value is not None and (self._restated.is_large or many_orders):
            # Models of smaller problems with few orders say more, and soon.
            share = _MANY_ORDERS_PRICES_SHARE if many_orders else _PRICES_SHARE
            self._bounds.price_devices(value, wall_share(self._clock, share))
        if value is None or self._clock.is_over:
            return
        if self._restated.is_large:
            # The better the plan, the fewer stages need be listed.
            self._improve_borders()
            value = self._incumbent.value(0)
            assert value is not None
        if many_orders or (self._restated.is_large and not parts_say_more):
            self._bounds.look_at_ideals(
                value,
                wall_share(self._clock, _IDEALS_SHARE),
                wall_share(self._clock, _IDEALS_BOUND_SHARE),
            )
        if not self._restated.is_large:
            return
        # Where moves gain next to nothing, sub-solves seldom gain more.
        if before is None or value <= before * (1000 - _NEAR_PERMILLE) // 1000:
            self._improve_by_neighbourhoods(target)

    # -- sources of plans, each asked for the next one after the last was offered -------------

    def _known_plans(self) -> Iterator[PartitionPlan]:
        """Yield the plans of other solvers."""
        yield from self._known

    def _plans_along_borders(self) -> Iterator[PartitionPlan]:
        """Yield the plans behind the bound on borders (:mod:`solver.bounds.borders.bound`)."""
        borders = self._bounds.stage_bounds.borders
        if borders is None or self._problem.objective[0] != "bottleneck":
            return
        least_ns = self._bounds.least("bottleneck")
        for permyriad in _WAY_PERMYRIAD:
            limit_ns = least_ns + least_ns * permyriad // 10_000
            value = self._incumbent.value(0)
            if value is not None and value <= limit_ns:
                break
            plan = borders.plan(limit_ns)
            if plan is not None and evaluate(self._problem, plan).feasible:
                yield plan
            yield from self._plan_near_borders(borders, limit_ns)

    def _plan_near_borders(self, borders: BorderBound, limit_ns: int) -> Iterator[PartitionPlan]:
        """Yield the best plan near a way along borders that knows nothing of what is beside them.

        Sub-solves put that where it costs least.
        """
        value, problem = self._incumbent.value(0), self._problem
        if (value is not None and value <= limit_ns) or not self._restated.is_large:
            return
        start = borders.plan(limit_ns, sends_sides=False)
        if start is None or len(start.device_order) < 2 or is_hand_made(problem):
            return
        plan = plan_near(
            self._restated.units,
            start,
            below_ns=value,
            clock=wall_share(self._clock, _NEAR_BORDERS_SHARE),
            workers=1 if self._limits.deterministic else self._limits.worker_count,
            seed=self._limits.seed,
        )
        if plan is not None:
            yield plan

    def _plan_without_host(self) -> Iterator[PartitionPlan]:
        """Yield a plan that leaves out a host, which the best plan often does.

        Transfers to a host cost it nothing. So fewer units can be merged than for the other
        devices alone, and every order of devices with it is harder to search.
        """
        problem = self._problem
        others = tuple(device for device in problem.devices if not device.is_host)
        if (
            problem.interconnect.charging != "host_staged"
            or not 0 < len(others) < len(problem.devices)
            or problem.objective[0] != "bottleneck"
            or not self._restated.is_large
            or any(allowed is not None for allowed in self._restated.units.allowed_devices)
            # Fewer devices may be too few stages.
            or is_hand_made(problem)
        ):
            return
        # A bound of these plans is none of all plans, so nobody hears of it.
        limits = replace(self._limits, on_progress=None)
        gone = {device.name for device in problem.devices if device.is_host}
        links = problem.interconnect.links.items()
        interconnect = replace(
            problem.interconnect, links={k: v for k, v in links if gone.isdisjoint(k)}
        )
        without = problem.replace(devices=others, interconnect=interconnect)
        clock = self._clock.slice(_WITHOUT_HOST_SHARE * self._clock.left_s)
        plan = self._solve(without, limits, clock).plan
        if plan is not None:
            yield plan

    def _cut_of_orders(self) -> Iterator[PartitionPlan]:
        """Yield the best cut of orders that make shared values at different places.

        Where a maker pays for each device that reads, much depends on them.
        """
        problem, restated = self._problem, self._restated
        if (
            problem.objective[0] == "bottleneck"
            and problem.interconnect.charging == "peer_to_peer"
            and problem.chunks_per_device == 1
            and restated.is_large
            and not is_hand_made(problem)
            and not (self._incumbent.plan is not None and self._clock.is_over)
        ):
            clock = wall_share(self._clock, _ORDERS_SHARE)
            if clock.wall_left_s < math.inf:
                clock = clock.slice(_ORDERS_S)
            plan = search_orders(
                restated.units,
                seed=self._limits.seed,
                target=self._bounds.least("bottleneck"),
                clock=clock,
            )
            if plan is not None:
                yield plan

    def _plan_at_cheap_borders(self) -> Iterator[PartitionPlan]:
        """Yield the best plan of those that end stages where little crosses.

        Host-staged cells of convolutions are cut as well along orders, and this takes a second.
        """
        problem = self._problem
        if (
            problem.interconnect.charging != "peer_to_peer"
            or not self._restated.is_large
            or self._clock.is_over
        ):
            return
        clock = wall_share(self._clock, _CHEAP_BORDERS_SHARE)
        if not self._limits.deterministic:
            clock = clock.slice(_CHEAP_BORDERS_S)
        improve = partial(better_plan, seed=self._limits.seed)
        plan = plan_at_cheap_borders(
            self._restated.units, clock, partial(solve_ideals, improve=improve)
        )
        if plan is not None:
            yield plan

    def _look_at_parts(self) -> bool:
        """Bound what parts of the graph cost, and what surrounds the incumbent's largest load.

        Returns whether the former says more than was known.
        """
        plan, value = self._incumbent.plan, self._incumbent.value(0)
        if plan is None or value is None:
            return False
        say_more = self._bounds.decompose(value, wall_share(self._clock, _PARTS_SHARE))
        # This takes little time or says little, so a clock ends it: not in a deterministic run.
        if not self._limits.deterministic:
            clock = wall_share(self._clock, _AROUND_SHARE).slice(_AROUND_S)
            self._bounds.look_around(plan, clock, solve_ideals)
        return say_more

    # -- better plans ---------------------------------------------------------------------

    def _improve_by_moves(self, starts: list[PartitionPlan], target: int) -> None:
        """Offer what local search makes of `starts`, and of cuts of its own."""
        restated = self._restated
        plan = first_incumbents(
            restated.units,
            starts,
            seed=self._limits.seed,
            max_iterations=None if restated.is_large else _FEW_MOVES_PER_UNIT * len(restated.units),
            target=target,
            clock=wall_share(self._clock, _LOCAL_SEARCH_SHARE),
        )
        if plan is not None:
            self._incumbent.offer(plan)

    def _improve_borders(self) -> None:
        """Offer what sub-solves of all borders at once find, if the gap is wide."""
        plan, value = self._incumbent.plan, self._incumbent.value(0)
        least = self._bounds.least(self._problem.objective[0])
        if plan is None or value is None or value <= least * (1000 + _WIDE_PERMILLE) // 1000:
            return
        better = improve_borders(
            self._restated.units,
            plan,
            clock=wall_share(self._clock, _BORDERS_SHARE),
            workers=1 if self._limits.deterministic else self._limits.worker_count,
            seed=self._limits.seed,
            target=least,
        )
        self._incumbent.offer(better)

    def _improve_by_neighbourhoods(self, target: int) -> None:
        """Offer what sub-solves around the borders of stages make of the incumbent."""
        units, plan = self._restated.units, self._incumbent.plan
        assert plan is not None
        if self._limits.deterministic:
            better = improve_by_neighbourhoods(
                units, plan, max_solves=_NEIGHBOURHOODS, seed=self._limits.seed, target=target
            )
        else:
            clock = wall_share(self._clock, _LOCAL_SEARCH_SHARE).slice(_NEIGHBOURHOODS_S)
            better = improve_by_neighbourhoods(
                units,
                plan,
                clock=clock,
                workers=self._limits.worker_count,
                seed=self._limits.seed,
                target=target,
            )
        self._incumbent.offer(better)
