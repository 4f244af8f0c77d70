"""Lexicographic objectives, for the program over ideals."""

from __future__ import annotations

from collections.abc import Mapping

from solver.dp.bottleneck import BottleneckSearch, Incumbent
from solver.dp.least_peak import PeakSearch
from solver.dp.sweep import Goal, Solution, Sweep, most_memory_bytes
from solver.model.clock import Clock
from solver.presolve.device_kinds import DeviceSets
from solver.stages.costs import StageCosts

_LARGEST = ("bottleneck", "peak_memory")


def _no_incumbent(*, thorough: bool = False) -> None:
    pass


class Minimiser:
    """Minimises the objectives of a problem, in as few sweeps as exactness allows.

    `search` is that for the least bottleneck, once it has begun.
    """

    def __init__(
        self,
        costs: StageCosts,
        sets: DeviceSets,
        incumbent: Incumbent,
        clock: Clock,
        most_pairs: int,
    ) -> None:
        self.problem, self.costs, self._sets = costs.problem, costs, sets
        self._incumbent = incumbent
        self._sweep = Sweep(costs, sets, clock, most_pairs)
        self.search: BottleneckSearch | None = None

    def minimise(self) -> tuple[Solution, tuple[int, ...]] | None:
        """Return the best solution with its values, or None; raise `GaveUp` above the limits."""
        objective = self.problem.objective
        sums: tuple[str, ...] = ()
        limits: dict[str, float] = {}
        values: dict[str, int] = {}
        found: Solution | None = None
        for position, name in enumerate(objective):
            largest = name if name in _LARGEST else None
            if largest is None:
                sums = (*sums, name)
                if position + 1 < len(objective):
                    continue
            if not sums and name == "bottleneck":
                found = self._least_bottleneck(limits)
            elif objective[: position + 1] == ("peak_memory",) and self.problem.memory_grows:
                sweep = self._sweep
                peaks = PeakSearch(self.costs, self._sets, sweep.capacity, sweep.spend)
                found = peaks.minimise()
            else:
                found = self._sweep.run(Goal(sums, largest, dict(limits)))
            if found is None:
                return None
            values.update(found.values)
            if largest is not None:
                limits[largest] = float(values[largest])
        assert found is not None
        return found, tuple(values[name] for name in objective)

    def _least_bottleneck(self, limits: Mapping[str, float]) -> Solution | None:
        sweep = self._sweep
        capacity = [
            most_memory_bytes(size_bytes, limits.get("peak_memory"))
            for size_bytes in sweep.capacity
        ]
        self.search = BottleneckSearch(
            self.costs,
            self._sets,
            capacity,
            # A plan may violate earlier limits, and is no incumbent then.
            _no_incumbent if limits else self._incumbent,
            sweep.spend,
        )
        return self.search.minimise()
