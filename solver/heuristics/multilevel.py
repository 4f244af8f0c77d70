"""Multilevel search for graphs too large for the exact one: coarsen, cut, improve, and bound.

The multilevel scheme of graph partitioners (Karypis and Kumar, "A fast and high quality
multilevel scheme", SIAM J. Sci. Comput. 20, 1998) with cuts of orders as initial partitions. The
bound is global, of the original problem, whatever the coarse graph has lost. Time and memory are
near linear in the graph.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from solver.bounds.averages import least_value
from solver.bounds.regional.positions import PositionBound
from solver.dp.contiguous.orders import renumbered
from solver.dp.contiguous.solver import best_cut, transition_count
from solver.heuristics.coarsening import cheap_order, consecutive_clusters
from solver.heuristics.local_search import improve
from solver.model.clock import Clock
from solver.model.plan import PartitionPlan
from solver.presolve.device_kinds import usable_devices
from solver.presolve.instance import Instance, contract
from solver.presolve.unit_cuts import by_block

_MOST_CLUSTERS: Final = 6000
_CLUSTERS_PER_DEVICE: Final = 160
_CUT_WORK: Final = 400_000_000
"""Array entries that one cut of the coarse graph may touch."""
_MOST_ITERATIONS: Final = 60_000
_ITERATIONS_PER_CLUSTER: Final = 60
_CUT_S_PER_PLACE: Final = 1.2e-5


class Multilevel:
    """The levels of one graph: its units, and clusters of them."""

    def __init__(self, units: Instance) -> None:
        self._units = units
        self._positions = PositionBound(units, usable_devices(units))

    @property
    def least(self) -> int:
        """A lower bound of the first objective over all plans."""
        applies = PositionBound.applies(self._units)
        name = self._units.problem.objective[0]
        return least_value(self._units, name, self._positions if applies else None)

    @cached_property
    def coarse(self) -> Instance:
        """Clusters of units, as many as one cut can afford, in an order of cheap cuts."""
        units = self._units
        order = by_block(units, cheap_order(self._positions))
        affordable = int((2 * _CUT_WORK / max(transition_count(units), 1)) ** 0.5)
        wanted = _CLUSTERS_PER_DEVICE * len(units.problem.devices)
        most = max(2, min(_MOST_CLUSTERS, affordable, max(wanted, 1000)))
        if len(units) <= most:
            return renumbered(units, order)
        return contract(units, *consecutive_clusters(units, order, most))

    @property
    def whole_cut_s(self) -> float:
        """Estimated seconds of a cut of the execution order at all places."""
        return _CUT_S_PER_PLACE * len(self._units) * len(self._units.problem.devices)

    def cut(self, clock: Clock) -> PartitionPlan | None:
        """Return the best cut of the order of clusters; None if no tried one fits."""
        return best_cut(self.coarse, clock=clock)

    def cut_units(self, clock: Clock) -> PartitionPlan | None:
        """Return the best cut of the order of units, or None if clusters are units."""
        if len(self.coarse) == len(self._units):
            return None
        return best_cut(self._units, clock=clock)

    def anneal(self, plan: PartitionPlan, clock: Clock, *, seed: int, target: int) -> PartitionPlan:
        """Return a feasible plan improved by moves of clusters.

        The time grows with the number of clusters. Those that `plan` divides go to the stage of
        their first operator. The search stops when the first objective reaches `target`.
        """
        most = min(_MOST_ITERATIONS, _ITERATIONS_PER_CLUSTER * len(self.coarse))
        return improve(
            self.coarse, plan, seed=seed, max_iterations=most, target=target, clock=clock
        )
