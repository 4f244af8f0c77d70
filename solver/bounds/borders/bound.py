"""A lower bound of the bottleneck over the actual borders of stages.

:mod:`solver.bounds.regional.positions` lets work and weights be divided anywhere within a
region. Where devices hold a few layers each, that bound is weak: weights are indivisible, and a
device with memory for two and a half layers holds two. Here stages end at existing borders
(:mod:`solver.bounds.borders.tables`). For a limit on the loads a dynamic program over the sets of
devices used so far decides if stages reach the end; destructive bounding
(:mod:`solver.bounds.regional.stepping`) finds the least limit for which they may. As stages are
longer than regions, little is relaxed but the memory of activations.
"""

from __future__ import annotations

from collections.abc import Iterator

from solver.bounds.borders.steps import BorderSteps, Front
from solver.bounds.borders.tables import BorderList, Borders
from solver.bounds.regional.spine import spine_units
from solver.bounds.regional.stepping import DestructiveBound
from solver.presolve.instance import Instance


class BorderBound(DestructiveBound):
    """Lower bounds from listed borders; parameters of its base.

    Proof. Take a plan of at most T, and leave out all units that are not on the spine; that raises
    neither a load nor memory (:mod:`solver.bounds.regional.spine`). Its stages with units left use
    some set of devices in some order. By :mod:`solver.bounds.borders.steps` the front of each set
    of the first of them has a border no worse than the units they run. So the front of some set has
    the end. If none does, no plan has all loads at most T. Of devices that are merged into one kind
    the kind has the largest memory and the highest speed.
    """

    most_sets = 700

    def __init__(self, units: Instance, slots: int) -> None:
        super().__init__(units, slots)
        kept = spine_units(units)
        self._table: Borders | None = None
        # Borders are listed only without hosts, which pay nothing, and for few ideals.
        if all(kind.pays for kind in self._kinds):
            slowness = max(units.slowness.values())
            work = self._work[kept]
            self._table = BorderList(units, kept, work, slots, slowness).borders()

    @property
    def is_known(self) -> bool:
        """True if the borders could be listed."""
        return self._table is not None

    def _fails(self, bottleneck_ns: int) -> bool:
        if self._table is None:
            return False
        steps = BorderSteps(self._table, bottleneck_ns)
        return not any(steps.is_done(front) for front in self._fronts(steps))

    def _fronts(self, steps: BorderSteps) -> Iterator[Front]:
        """Yield the fronts of all sets of devices, the smaller ones first."""
        fronts = {0: steps.start()}
        yield fronts[0]
        for level in self._sets.levels[1 : self._slots + 1]:
            for used in reversed(range(level.start, level.stop)):
                fronts[used] = steps.after(
                    [(fronts[rest], self._few_kinds[k]) for k, rest in self._sets.smaller[used]]
                )
                yield fronts[used]
