"""Choose what runs again in the stages of a plan, so that they fit.

Every part of a region on a stage has a hull of choices (:mod:`solver.stages.recompute_hull`). The
steps along all hulls of a device, the cheapest bytes first, are the solutions of the relaxed
multiple-choice knapsack (Sinha and Zoltners, "The multiple-choice knapsack problem", Operations
Research 27, 1979), but for peaks: how many of them it takes to fit is found by bisection over what
the evaluator's rows say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from solver.evaluation.evaluate import evaluate
from solver.evaluation.recomputed_memory import RecomputedStage
from solver.evaluation.stage_memory import microbatches_in_flight
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.recomputation import Recomputation, required, with_required
from solver.stages.recompute_hull import Choice, Part, RecomputeHulls


class _Step(NamedTuple):
    """A step along the hull of a part, by what it takes for each byte that it frees."""

    price: float
    part: int
    choice: int
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class _OwnedPart:
    """A part of a stage, with its hull."""

    stage: int
    part: Part
    hull: tuple[Choice, ...]


class RecomputeChooser:
    """Completes plans of a problem; keeps what it has found of stages.

    Parameters
    ----------
    problem : PartitionProblem
        In which operators may run again.
    """

    def __init__(self, problem: PartitionProblem) -> None:
        self._problem = problem
        self._bytes: dict[tuple[tuple[int, ...], frozenset[str]], tuple[int, int]] = {}
        self._found: dict[tuple[object, ...], frozenset[str] | None] = {}

    @cached_property
    def hulls(self) -> Mapping[str, RecomputeHulls]:
        """The hulls of parts, by class of devices."""
        classes = {device.device_class for device in self._problem.devices}
        return {name: RecomputeHulls(self._problem, name) for name in sorted(classes)}

    def completed(self, plan: PartitionPlan) -> PartitionPlan:
        """Return a plan with what runs again on devices that it does not fit on otherwise.

        Of devices that nothing helps, what they have stays as it is.
        """
        plan = with_required(self._problem, replace(plan, recomputed=frozenset()))
        evaluation = evaluate(self._problem, plan)
        members: list[list[int]] = [[] for _ in plan.stages]
        for index, op in enumerate(self._problem.operators):
            members[plan.stage_index[op.name]].append(index)
        in_flight = microbatches_in_flight(self._problem, plan)
        again = plan.recomputed
        for usage in evaluation.usage:
            room_bytes = usage.capacity_bytes
            if room_bytes is None or usage.memory_bytes <= room_bytes:
                continue
            own = [
                (tuple(members[number]), in_flight[number])
                for number, stage in enumerate(plan.stages)
                if stage.device == usage.device
            ]
            device_class = self._problem.device_of[usage.device].device_class
            excess_bytes = usage.memory_bytes - room_bytes
            room_bytes -= usage.weights_bytes + usage.received_bytes
            key = (device_class, tuple(own), room_bytes)
            if key not in self._found:
                self._found[key] = self._cheapest(device_class, own, room_bytes, excess_bytes)
            again |= self._found[key] or frozenset()
        return with_required(self._problem, replace(plan, recomputed=again))

    # -- one device -----------------------------------------------------------------------------

    def _held_bytes(self, members: tuple[int, ...], in_flight: int, again: frozenset[str]) -> int:
        """Return what a stage holds, without weights and received values."""
        key = members, again
        if key not in self._bytes:
            self._bytes[key] = self._measured(members, again)
        peak_bytes, saved_bytes = self._bytes[key]
        return peak_bytes + (in_flight - 1) * saved_bytes

    def _measured(self, members: tuple[int, ...], again: frozenset[str]) -> tuple[int, int]:
        stage_of = {self._problem.operators[index].name: 0 for index in members}
        again = required(self._problem, stage_of, again)
        recomputation = Recomputation(self._problem, stage_of, again)
        stage = RecomputedStage(self._problem, list(members), recomputation)
        return int(stage.live_bytes.max()), stage.saved_bytes

    def _cheapest(
        self,
        device_class: str,
        stages: list[tuple[tuple[int, ...], int]],
        room_bytes: int,
        excess_bytes: int,
    ) -> frozenset[str] | None:
        """Return what runs again so that the stages of a device fit, or None.

        Parameters
        ----------
        stages : list of (tuple of int, int)
            Operators and microbatches in flight of each.
        room_bytes : int
            For them.
        excess_bytes : int
            How much more they need if nothing runs again.
        """
        parts = [
            _OwnedPart(number, part, hull)
            for number, (members, _) in enumerate(stages)
            for part in self.hulls[device_class].parts(members)
            if len(hull := self.hulls[device_class].hull(part)) > 1
        ]
        steps: list[_Step] = []
        for number, own in enumerate(parts):
            # The last region is there as a whole while its own backward pass runs.
            times = stages[own.stage][1] - own.part.is_last
            for choice, (before, after) in enumerate(itertools.pairwise(own.hull), start=1):
                freed_bytes = (before.held_bytes - after.held_bytes) * times
                taken_ns = after.extra_ns - before.extra_ns
                price = taken_ns / freed_bytes if freed_bytes else math.inf
                steps.append(_Step(price, number, choice, freed_bytes))
        steps.sort()

        def fits(count: int) -> bool:
            chosen = self._chosen(parts, steps[:count])
            held = sum(
                self._held_bytes(*stage, chosen[number]) for number, stage in enumerate(stages)
            )
            return held <= room_bytes

        freed = itertools.accumulate(step.freed_bytes for step in steps)
        guess = sum(1 for bytes_ in freed if bytes_ < excess_bytes) + 1
        high = self._first_fitting(len(steps), min(guess, len(steps)), fits) if steps else None
        if high is None:
            return None
        return frozenset().union(*self._chosen(parts, steps[:high]).values())

    def _first_fitting(self, count: int, guess: int, fits: Callable[[int], bool]) -> int | None:
        """Return a small number of steps, at most `count`, that fit; None if none is found.

        What runs again takes room while it does, so that more steps may take more. So numbers are
        tried from a guess on, at growing distances.
        """
        low, width = max(guess - 1, 0), 1
        if fits(high := max(guess, 1)):
            while low and fits(low):
                low, high, width = max(low - width, 0), low, 2 * width
        else:
            low = high
            while not fits(high := min(low + width, count)):
                if high == count:
                    return None
                low, width = high, 2 * width
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                high = middle
            else:
                low = middle
        return high

    def _chosen(self, parts: list[_OwnedPart], steps: list[_Step]) -> dict[int, frozenset[str]]:
        """Return by stage what runs again after some steps."""
        reached = [0] * len(parts)
        for step in steps:
            reached[step.part] = max(reached[step.part], step.choice)
        found: dict[int, set[str]] = {own.stage: set() for own in parts}
        for own, choice in zip(parts, reached, strict=True):
            found[own.stage] |= {
                self._problem.operators[own.part.members[place]].name
                for place in own.hull[choice].again
            }
        return {stage: frozenset(names) for stage, names in found.items()}
