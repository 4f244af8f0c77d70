"""Least numbers of devices that read a value, which sums over single stages do not determine.

Under peer-to-peer charging a stage pays one send for each other device that reads its value. Two
ideals determine only whether there is such a device at all, so loads count one. Plans below a
ceiling allow more: each consists of listed stages (:mod:`solver.dp.stage_list`). Let ``least[J]``
be the least number of stages with a reader over all paths of listed stages from ideal J to the end,
devices ignored, by recursion: over all stages from J to K, ``least[K]``, plus one if a reader is
between. A stage that makes the value and ends at J sends it at least ``least[J]`` times in any plan
below the ceiling, because all stages of the plan are listed. So its load may be raised by the
missing sends; stages above the ceiling then leave the list, and ``least`` can only rise.

This is done for values that the best plan of the list undercounts, then for all, until nothing can
be raised. (Decremental state space relaxation, Righini and Salani, "New dynamic programming
algorithms for the resource constrained elementary shortest path problem", Networks 51, 2008, also
refines what the relaxed optimum violates; here bounds take the place of further states.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from solver.dp.kernels.stage_chains import Stage
from solver.dp.stage_list import StageList
from solver.model.arrays import Bools, Floats
from solver.stages.blocks import crossings
from solver.stages.costs import StageCosts
from solver.stages.pair_sums import Crossing


class Readers:
    """Values read by several blocks; each is sent to every device with a reader."""

    def __init__(self, costs: StageCosts) -> None:
        self._member = costs.ideals.member
        self._nets: list[Crossing] = []
        # If sends overlap compute or receives, the load does not determine the cost of one more.
        transfers = costs.units.transfers
        if transfers.counts_one_send:
            return
        every = crossings(transfers.nets, transfers.least_ns, costs.blocks)
        self._nets = [crossing for crossing in every if len(crossing.consumers) > 1]

    def __len__(self) -> int:
        return len(self._nets)

    def missing(
        self, stages: Sequence[Stage], sends: Mapping[int, Floats]
    ) -> dict[int, tuple[int, int]]:
        """Return the values that a plan sends more often than `sends` of its list counts.

        By value, these are the number of the stage that makes it and the missing nanoseconds.
        """
        found: dict[int, tuple[int, int]] = {}
        for net, crossing in enumerate(self._nets):
            borders = [0, *(stage.end for stage in stages)]
            at = int(np.argmax(self._member[crossing.producer, borders])) - 1
            read = np.diff(self._member[np.ix_(crossing.consumers, borders)].sum(axis=0)) > 0
            read[at] = False
            counted = sends[net][stages[at].end] if net in sends else 1
            if read.sum() > counted:
                found[net] = at, crossing.cost * int(read.sum() - counted)
        return found

    def raised(self, stages: StageList, nets: Sequence[int]) -> StageList | None:
        """Return a list of stages with more sends of some values counted; None if it is the same.

        The stages are all those of plans below a ceiling.
        """
        if not nets:
            return None
        starts = np.repeat(stages.start, np.diff(stages.first))
        load_ns, sends, changed = stages.load_ns.copy(), dict(stages.sends), False
        for net in nets:
            crossing = self._nets[net]
            read = self._member[list(crossing.consumers)].sum(axis=0)
            least = np.maximum(_least(stages, read[stages.end] > read[starts], len(read)), 1)
            made = self._member[crossing.producer]
            made = made[stages.end] & ~made[starts]
            more = least[stages.end] - (sends[net][stages.end] if net in sends else 1)
            raised = made & (more > 0)
            if raised.any():
                load_ns[raised] += crossing.cost * more[raised]
                sends[net], changed = least, True
        return replace(stages, load_ns=load_ns, sends=sends) if changed else None


def _least(stages: StageList, marked: Bools, ideals: int) -> Floats:
    """Return the least number of marked stages from every ideal to the end."""
    least = np.full(ideals, np.inf)
    least[-1] = 0.0
    for groups, first in stages.levels():
        some = slice(int(first[0]), int(first[-1]))
        behind = least[stages.end[some]] + marked[some]
        np.minimum.at(
            least, stages.start[groups], np.minimum.reduceat(behind, first[:-1] - first[0])
        )
    return least
