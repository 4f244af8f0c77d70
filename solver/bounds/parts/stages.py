"""All stages of a part below a ceiling on the load, and the least cost of its plans."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from solver.dp.set_bits import SetBits
from solver.dp.stage_list import Families, StageLister, TooManyStages
from solver.model.arrays import Floats
from solver.model.clock import Clock
from solver.model.problem import PartitionProblem
from solver.presolve.device_kinds import DeviceSets, capacity_bytes, interchangeable_kinds
from solver.presolve.dominance import simplify
from solver.presolve.instance import condense
from solver.stages.blocks import collapse_units
from solver.stages.costs import StageCosts
from solver.stages.ideals import list_ideals

_MOST_IDEALS = 12_000
_MOST_STAGES = 1_500_000
_MOST_STEPS = 300_000_000
"""Stages times the sets of devices before which each may come."""
_MOST_PAIRS = 300_000_000
_EXACT = 2**53
"""Floats below this are exact integers."""


class PartStages:
    """Stages between the ideals of a part, each with its load, and the devices on which it fits.

    The part is one of :func:`solver.bounds.parts.subproblem.part_of`. A nanosecond of load has a
    weight by device class, and `ceiling_ns` limits loads. Raises `TooManyStages` if they would take
    too much memory or time.
    """

    def __init__(
        self, part: PartitionProblem, weights: Mapping[str, int], ceiling_ns: int, clock: Clock
    ) -> None:
        self._clock = clock
        units = simplify(condense(part)).units
        kinds = interchangeable_kinds(units)
        blocks = collapse_units(units, forget_weights=part.memory_model == "weights")
        ideals = list_ideals(blocks.count, blocks.edges, _MOST_IDEALS)
        if ideals is None:
            raise TooManyStages
        self._costs = StageCosts(units, kinds, blocks, ideals)
        self._weights = [weights[kind.device.device_class] for kind in kinds]
        if self._costs.most_load_ns * max(self._weights) * len(part.devices) >= _EXACT:
            raise TooManyStages
        most = part.most_devices
        limits = [len(kind.devices) for kind in kinds]
        self._sets = DeviceSets.of(limits, most)
        self._pairs_left = _MOST_PAIRS
        capacity = [capacity_bytes(kind.device) for kind in kinds]
        lister = StageLister(self._costs, capacity, [1] * most, self._spend)
        bits = SetBits(limits, most)
        may = bits.pack(np.repeat(bits.usable[:, None], len(self._costs.ideals), axis=1))
        families = Families(bits, len(self._costs.ideals), may)
        most_stages = min(_MOST_STAGES, _MOST_STEPS // len(self._sets))
        self._all = lister.fill(families, ceiling_ns, most_stages)
        self._fits = lister.followers >= 0
        self._limit_ns, self._stages = ceiling_ns, self._all

    def _spend(self, pairs: int) -> None:
        self._pairs_left -= pairs
        if self._clock.is_over or self._pairs_left < 0:
            raise TooManyStages

    def least_load(self, limit_ns: int) -> int | None:
        """Return the least weighted sum of loads of plans on any devices; None without plans.

        No load is above `limit_ns`.
        """
        if limit_ns != self._limit_ns:
            self._limit_ns = limit_ns
            self._stages = None if self._all is None else self._all.below(limit_ns)
        least = np.full((len(self._sets), len(self._costs.ideals)), np.inf)
        least[0, -1] = 0.0
        # Smaller sets come first.
        for behind, steps in zip(least, self._sets.larger, strict=True):
            with_one: dict[int, Floats] = {}
            for kind, more in steps:
                weight = self._weights[kind]
                if weight not in with_one:
                    with_one[weight] = self._with_stage(behind, weight)
                self._put_before(least[more], with_one[weight], kind)
        cost = least[:, 0].min()
        return int(cost) if np.isfinite(cost) else None

    def _with_stage(self, behind: Floats, weight: int) -> Floats:
        """Return the least cost of a stage and the stages behind it, by groups of stages."""
        if self._stages is None or not len(self._stages.end):
            return np.empty(0)
        least = behind[self._stages.end] + weight * self._stages.load_ns
        return np.asarray(np.minimum.reduceat(least, self._stages.first[:-1]))

    def _put_before(self, least: Floats, with_one: Floats, kind: int) -> None:
        """Lower costs to those with one more stage, where it fits on a device of a kind."""
        if len(with_one) and self._stages is not None:
            fits = self._fits[self._stages.class_, kind]
            np.minimum.at(least, self._stages.start[fits], with_one[fits])
