"""Loads of single stages, over all choices of recomputation.

Bounds by a price of bytes allow any mixture of choices, and are weak at peaks. The recomputation
of the operators that a stage certainly runs is exact (:mod:`solver.stages.least_recomputation`):
operators that may lie on either side of a border keep nothing there, and values read from them
need no anchor. That is a bound as well, and without such operators it is the load of the stage,
except for the memory of its forward passes and of recomputation.
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
        Of a problem with recomputable operators.
    kinds : sequence of DeviceKind
        Its devices.
    choices : mapping of str to RecomputeChoices
        By device class.
    """

    def __init__(
        self, units: Instance, kinds: Sequence[DeviceKind], choices: Mapping[str, RecomputeChoices]
    ) -> None:
        self._units, self._kinds, self._choices = units, kinds, choices
        self._problem = units.problem

    def load_ns(self, kind: int, flying: int, units: Ints, perhaps: Ints) -> float:
        """Return a lower bound of a stage's load, without transfers; infinite if it does not fit.

        Parameters
        ----------
        kind : int
            Of devices.
        flying : int
            Microbatches in flight.
        units, perhaps : Ints
            Units of the stage that are certain, and that are possible.
        """
        device = self._kinds[kind].device
        work_ns = float(self._units.work_ns[device.device_class][units].sum())
        if device.memory_bytes is None:
            return work_ns
        members, others = self._operators(units), frozenset(self._operators(perhaps))
        free_bytes = device.memory_bytes - self._always_bytes(members, others)
        choices = self._choices[device.device_class]
        parts = StageParts.of(choices, choices.parts(members, others), flying)
        return work_ns + least_recomputation([parts], free_bytes).bound_ns

    def _operators(self, units: Ints) -> list[int]:
        return sorted(index for unit in units.tolist() for index in self._units.members[unit])

    def _always_bytes(self, members: list[int], perhaps: frozenset[int]) -> int:
        """Return the bytes of weights and received values of a stage, whatever is recomputed."""
        arrays, index_of = self._problem.arrays, self._problem.index_of
        own: Ints = np.array(members, dtype=np.int64)
        group = np.zeros(len(self._problem.operators), dtype=np.int64)
        (weights_bytes,) = weights_bytes_of(self._problem, group, own).tolist()
        read = np.unique(arrays.reads.pairs(own)[1])
        inside = np.zeros(len(arrays.held_bytes), dtype=np.bool_)
        inside[members] = True
        # By operator elsewhere, the least bytes received from it through aliases on the border.
        received: dict[int, int] = {}
        for value in read[~inside[read]].tolist():
            size_bytes, at = int(arrays.held_bytes[value]), value
            while at in perhaps and (alias_of := self._problem.operators[at].alias_of) in index_of:
                at = index_of[alias_of]
                size_bytes = min(size_bytes, int(arrays.held_bytes[at]))
            if at not in perhaps and not inside[at]:
                received[at] = max(received.get(at, 0), size_bytes)
        return int(weights_bytes) + sum(received.values())
