"""V-cycles of annealing: on clusters of units, then on the units themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solver.heuristics.annealing.anneal import PEAK_SCALE, Cooling, anneal
from solver.heuristics.annealing.stage_state import StageState
from solver.model.clock import Clock
from solver.model.devices import Device
from solver.model.problem_fields import ObjectiveName
from solver.presolve.clusters import cluster
from solver.presolve.instance import Instance, contract

_WORTHWHILE = 0.7
"""The largest share of clusters among units at which clusters are annealed."""
_ONE_CYCLE_ABOVE = 5_000
"""Number of units above which a single cycle uses up all iterations."""
_MOVES_PER_UNIT, _MOST_MOVES = 360, 240_000
"""One to three seconds, or up to ten if memory counts activations; measured on NASNet."""
_SHARES = (1 / 8, 1 / 16, 1 / 4)
"""Largest clusters of the cycles, as shares of an average stage."""
_COARSE, _FINE = (0.03, 0.002), (0.01, 0.0001)
"""First and last temperatures on clusters and on units."""


def usual_moves(units: Instance) -> int:
    """Return the number of moves of a search, which grows with the graph."""
    return min(len(units) * _MOVES_PER_UNIT, _MOST_MOVES)


@dataclass(slots=True)
class VCycles:
    """The V-cycles of one search; `seed` and `target` are those of `improve` in `local_search`."""

    units: Instance
    devices: list[Device]  # by position
    objective: ObjectiveName
    seed: int
    target: int
    clock: Clock  # its time is divided among the cycles

    def run(self, positions: list[int], budget: int) -> list[int] | None:
        """Return the best positions found within the capacities, or None."""
        best: int | None = None
        shares = _SHARES[: 1 if len(self.units) > _ONE_CYCLE_ABOVE else None]
        if any(device.memory_bytes is not None for device in self.devices):
            positions = self._repaired(positions, budget // 3)
        each = budget // (2 * len(shares))
        for number, share in enumerate(shares):
            left = 2 * (len(shares) - number)
            seed = self.seed + number
            cluster_of, count = self._clusters(positions, share, seed)
            spared = each
            if count <= _WORTHWHILE * len(self.units):
                start = [0] * count
                for unit, name in enumerate(cluster_of):
                    start[name] = positions[unit]
                graph = contract(self.units, cluster_of, count)
                found = self._anneal(graph, start, Cooling(each, *_COARSE), seed, left)
                spared = 0
                if found is not None and (best is None or found[0] < best):
                    best = found[0]
                    positions = [found[1][name] for name in cluster_of]
            cooling = Cooling(each + spared, *_FINE)
            found = self._anneal(self.units, positions, cooling, seed, left - 1)
            if found is not None and (best is None or found[0] < best):
                best, positions = found
            if (best is not None and best <= self.target) or self.clock.is_over:
                break
        return None if best is None else positions

    def _clusters(self, positions: list[int], share: float, seed: int) -> tuple[list[int], int]:
        """Return the cluster of every unit and their number."""
        return cluster(self.units, positions, share / len(self.devices), seed)

    def _repaired(self, positions: list[int], budget: int) -> list[int]:
        """Return positions within the capacities, if lowering the peak of memory finds some."""
        state = StageState(self.units, self.devices)
        state.place(positions)
        if not state.excess_bytes():
            return positions
        cooling = Cooling(budget, *_FINE)
        # Any plan that fits ends this search: anneal records no other.
        found = anneal(
            state, "peak_memory", cooling, self.seed, target=PEAK_SCALE, clock=self.clock
        )
        return positions if found is None else found[1]

    def _anneal(
        self, graph: Instance, positions: Sequence[int], cooling: Cooling, seed: int, left: int
    ) -> tuple[int, list[int]] | None:
        """Anneal for a fair part of the time, with `left` searches to come including this one."""
        # Moves are not charged: without wall time their number alone ends the search.
        clock = self.clock.slice(self.clock.wall_left_s / left)
        state = StageState(graph, self.devices, every_value=self.objective == "transfer")
        state.place(positions)
        return anneal(state, self.objective, cooling, seed, target=self.target, clock=clock)
