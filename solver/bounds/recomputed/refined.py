"""Loads of stages, one by one, by all choices of what runs again.

Bounds by a price of bytes take any mixture of choices, and see little of what is there at peaks.
What the operators add that a stage runs for certain is known
(:mod:`solver.stages.least_recomputation`): those that may lie on either side of a border keep
nothing there, and what is read of them needs no anchor. That is a bound as well, and without such
operators it is what the stage takes, but for what it holds while it runs forward, or operators
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from solver.evaluation.stage_memory import weights_bytes_of
from solver.model.arrays import Ints
from solver.presolve.device_kinds import DeviceKind
from solver.presolve.instance import Instance
from solver.stages.least_recomputation import StageParts, least_recomputation
from solver.stages.recompute_choices import RecomputeChoices


class RefinedStages:
    """Stages of units.

    Parameters
    ----------
    units : Instance
        Of a problem in which operators may run again.
    kinds : sequence of DeviceKind
        Its devices.
    choices : mapping of str to RecomputeChoices
        By class of devices.
    """

    def __init__(
        self,
        units: Instance,
        kinds: Sequence[DeviceKind],
        choices: Mapping[str, RecomputeChoices],
    ) -> None:
        self._units, self._kinds, self._choices = units, kinds, choices
        self._problem = units.problem

    def load_ns(self, kind: int, flying: int, units: Ints, perhaps: Ints) -> float:
        """Return at least the load of a stage, without transfers; infinite if it does not fit.

        Parameters
        ----------
        kind : int
            Of devices.
        flying : int
            Microbatches in flight.
        units, perhaps : Ints
            What it runs for certain, and may run besides.
        """
        device = self._kinds[kind].device
        work_ns = float(self._units.work_ns[device.device_class][units].sum())
        if device.memory_bytes is None:
            return work_ns
        members, others = self._operators(units), frozenset(self._operators(perhaps))
        room_bytes = device.memory_bytes - self._always_bytes(members, others)
        choices = self._choices[device.device_class]
        parts = StageParts.of(choices, choices.parts(members, others), flying)
        return work_ns + least_recomputation([parts], room_bytes).bound_ns

    def _operators(self, units: Ints) -> list[int]:
        return sorted(index for unit in units.tolist() for index in self._units.members[unit])

    def _always_bytes(self, members: list[int], perhaps: frozenset[int]) -> int:
        """Return what a stage has of weights and of received values, whatever runs again."""
        arrays, index_of = self._problem.arrays, self._problem.index_of
        own: Ints = np.array(members, dtype=np.int64)
        group = np.zeros(len(self._problem.operators), dtype=np.int64)
        (weights_bytes,) = weights_bytes_of(self._problem, group, own).tolist()
        read = np.unique(arrays.reads.pairs(own)[1])
        inside = np.zeros(len(arrays.held_bytes), dtype=np.bool_)
        inside[members] = True
        # By what is elsewhere, the least of what comes from there through aliases on the border.
        received: dict[int, int] = {}
        for value in read[~inside[read]].tolist():
            size_bytes, at = int(arrays.held_bytes[value]), value
            while at in perhaps and (alias_of := self._problem.operators[at].alias_of) in index_of:
                at = index_of[alias_of]
                size_bytes = min(size_bytes, int(arrays.held_bytes[at]))
            if at not in perhaps and not inside[at]:
                received[at] = max(received.get(at, 0), size_bytes)
        return int(weights_bytes) + sum(received.values())
