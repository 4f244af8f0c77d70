"""Lower bounds of objectives that need no model of the whole problem."""

from __future__ import annotations

import math
from collections.abc import Sequence

from solver.bounds.averages import least_value
from solver.bounds.direct import direct
from solver.bounds.lagrangian.bound import PriceBound
from solver.bounds.parts import decomposition
from solver.bounds.parts.around_load import part_bound_ns
from solver.bounds.parts.decomposition import Decomposition
from solver.bounds.parts.graph_parts import has_parts
from solver.bounds.state_space.bound import SkeletonBound
from solver.bounds.windows import StageBounds
from solver.evaluation.result import SolveResult
from solver.model.devices import Device
from solver.model.plan import PartitionPlan
from solver.model.problem import ObjectiveName
from solver.presolve.presolved import RestatedProblem


class ObjectiveBounds:
    """What is known of the objectives of all plans.

    Parameters
    ----------
    known : SolveResult, optional
        Another solver's answer, whose bounds are taken over.

    Attributes
    ----------
    stage_bounds : StageBounds
        Of the units with identical blocks in order.
    """

    def __init__(self, restated: RestatedProblem, known: SolveResult | None) -> None:
        self._restated = restated
        self._problem = restated.problem
        self._known = known
        self._least_ns: int | None = None
        self._decomposition: Decomposition | None = None
        self.stage_bounds = StageBounds(restated.identical.ordered())

    def least(self, name: ObjectiveName) -> int:
        """Return a lower bound of an objective over all plans."""
        least = 0
        if name == "bottleneck":
            if self._least_ns is None:
                self._least_ns = self.stage_bounds.least_bottleneck_ns(self._restated.slots)
            least = self._least_ns
        if name == "step":
            least = least_value(direct(self._restated.units), "step", None)
            if not self._problem.interconnect.overlap:
                least = max(least, self._problem.microbatches * self.least("bottleneck"))
        if name == "devices":
            least = self.stage_bounds.least_devices()
        if name in ("latency", "peak_memory"):
            least = least_value(direct(self._restated.units), name, None)
        if name == self._problem.objective[0] and self._known is not None:
            least = max(least, *(self._known.objective_bounds or (0,))[:1])
        return least

    def decompose(self, ceiling: int, end_s: float | None) -> bool:
        """Take over the bound of :mod:`~solver.bounds.parts.decomposition`; return if it is better.

        Parameters
        ----------
        ceiling : int
            Only plans with less of the first objective are of interest.
        end_s : float or None
            When to stop, on the clock of ``time.perf_counter``.
        """
        least_ns = self.least("bottleneck")
        units = self._restated.units
        if decomposition.applies(units) and least_ns < ceiling:
            self._decomposition, self._least_ns = decomposition.decompose(
                units, least_ns, ceiling - 1, end_s
            )
        return self.least("bottleneck") > least_ns

    def refutes_order(self, order: Sequence[Device], limit_ns: int) -> bool:
        """Return whether parts of the graph say that no plan on these devices is within a limit.

        Parameters
        ----------
        order : sequence of Device
            The first stage's first.
        limit_ns : int
            Of every load.
        """
        parts = self._decomposition
        if parts is None or limit_ns > parts.ceiling_ns:
            return False
        return parts.refutes_order([device.name for device in order], limit_ns)

    def look_around(self, plan: PartitionPlan, end_s: float | None) -> None:
        """Take over what ``part_bound_ns`` of parts around the largest load says, if it does.

        Parameters
        ----------
        plan : PartitionPlan
            The incumbent.
        end_s : float or None
            When to stop, on the clock of ``time.perf_counter``.
        """
        if has_parts(self._problem):
            least_ns = self.least("bottleneck")
            self._least_ns = max(least_ns, part_bound_ns(self._problem, plan, end_s))

    def price_devices(self, ceiling: int, end_s: float | None) -> None:
        """Take over the bound of :class:`PriceBound`, where devices differ.

        Parameters
        ----------
        ceiling : int
            Only plans with less of the first objective are of interest.
        end_s : float or None
            When to stop, on the clock of ``time.perf_counter``.
        """
        slots = self._restated.slots
        if self._problem.objective[0] != "bottleneck" or slots < 2:
            return
        bound = PriceBound.of(self._restated.units, slots)
        if bound is not None and bound.tells_devices_apart:
            self._least_ns = bound.least_bottleneck_ns(
                self.least("bottleneck"), ceiling, end_s=math.inf if end_s is None else end_s
            )

    def look_at_ideals(self, ceiling: int, end_s: float | None, bound_end_s: float | None) -> None:
        """Take over the bound and the windows of :class:`SkeletonBound`, where they apply.

        Parameters
        ----------
        ceiling : int
            Only plans with at most this value of the first objective are of interest.
        end_s, bound_end_s : float or None
            By when stages must be listed, and from when on no better bound is looked for, on the
            clock of ``time.perf_counter``.
        """
        restated, slots = self._restated, self._restated.slots
        if (
            self._problem.objective[0] != "bottleneck"
            or slots < 2
            or not SkeletonBound.applies(restated.units)
        ):
            return
        if len(restated.kinds) > 1 and restated.orders(every_length=False):
            # Linear programs of single orders say more, and ask for windows of each.
            return
        least = self.least("bottleneck")
        order = self._problem.devices[:slots] if len(restated.kinds) == 1 else None
        windows = self.stage_bounds.windows(slots, ceiling, order)
        if windows.empty:
            return
        bound = SkeletonBound.of(
            restated.units, slots, ceiling, windows, math.inf if end_s is None else end_s
        )
        if bound is not None:
            self.stage_bounds.narrow_by(bound)
            found = bound.least_bottleneck_ns(
                least, math.inf if bound_end_s is None else bound_end_s
            )
            self._least_ns = max(least, min(found, ceiling))
