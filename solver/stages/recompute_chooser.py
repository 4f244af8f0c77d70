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
from collections.abc import Callable, Mapping, Sequence
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

_MOST_TRIED = 6
"""Choices that the evaluator sees after the steps that fit, those that take least."""
_MOST_KEPT = 5000
_ROUNDING = 1e-9


class _Step(NamedTuple):
    """A step along the hull of a part, by what it takes for each byte that it frees."""

    price: float
    part: int
    choice: int
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class _OwnedPart:
    """A part of a stage, with its hull, and how often what it keeps is there."""

    stage: int
    times: int
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
            # The last region is there as a whole while its own backward pass runs.
            _OwnedPart(number, in_flight - part.is_last, part, hull)
            for number, (members, in_flight) in enumerate(stages)
            for part in self.hulls[device_class].parts(members)
            if len(hull := self.hulls[device_class].hull(part)) > 1
        ]
        steps: list[_Step] = []
        for number, own in enumerate(parts):
            for choice, (before, after) in enumerate(itertools.pairwise(own.hull), start=1):
                freed_bytes = (before.held_bytes - after.held_bytes) * own.times
                taken_ns = after.extra_ns - before.extra_ns
                price = taken_ns / freed_bytes if freed_bytes else math.inf
                steps.append(_Step(price, number, choice, freed_bytes))
        steps.sort()

        def has_room(reached: Sequence[int]) -> bool:
            chosen = _chosen(self._problem, parts, reached)
            held = sum(
                self._held_bytes(*stage, chosen.get(number, frozenset()))
                for number, stage in enumerate(stages)
            )
            return held <= room_bytes

        def fits(count: int) -> bool:
            return has_room(_reached(parts, steps[:count]))

        freed = itertools.accumulate(step.freed_bytes for step in steps)
        guess = sum(1 for bytes_ in freed if bytes_ < excess_bytes) + 1
        high = self._first_fitting(len(steps), min(guess, len(steps)), fits) if steps else None
        if high is None:
            return None
        tried = _between(parts, steps, high)[:_MOST_TRIED]
        best = next(filter(has_room, tried), _reached(parts, steps[:high]))
        return frozenset().union(*_chosen(self._problem, parts, best).values())

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


def _reached(parts: Sequence[_OwnedPart], steps: Sequence[_Step]) -> list[int]:
    """Return the choice of each part after some steps."""
    reached = [0] * len(parts)
    for step in steps:
        reached[step.part] = max(reached[step.part], step.choice)
    return reached


def _chosen(
    problem: PartitionProblem, parts: Sequence[_OwnedPart], reached: Sequence[int]
) -> dict[int, frozenset[str]]:
    """Return by stage what runs again, given the choice of each part."""
    found: dict[int, set[str]] = {own.stage: set() for own in parts}
    for own, choice in zip(parts, reached, strict=True):
        found[own.stage] |= {
            problem.operators[own.part.members[place]].name for place in own.hull[choice].again
        }
    return {stage: frozenset(names) for stage, names in found.items()}


def _between(
    parts: Sequence[_OwnedPart], steps: Sequence[_Step], count: int
) -> list[tuple[int, ...]]:
    """Return choices of parts that take less than some steps do, those that take least first.

    They keep less than one step fewer does. At the price of the last step the choices reached cost
    least, those before that step and those after it, so that few others cost no more than what lies
    between the two.
    """
    price = steps[count - 1].price
    if not math.isfinite(price):
        return []
    options = [
        [(choice.extra_ns, choice.held_bytes * own.times) for choice in own.hull] for own in parts
    ]
    most_ns = sum(
        own[at][0] for own, at in zip(options, _reached(parts, steps[:count]), strict=True)
    )
    most_bytes = sum(
        own[at][1] for own, at in zip(options, _reached(parts, steps[: count - 1]), strict=True)
    )
    least = [min(time_ns + price * size for time_ns, size in own) for own in options]
    most_cost = (most_ns + price * most_bytes - sum(least)) * (1 + _ROUNDING)
    # By time and bytes, what is lost at that price, and the choices.
    found: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(0, 0): (0.0, ())}
    for own, least_cost in zip(options, least, strict=True):
        found = {
            (before_ns + time_ns, before + size): (lost, (*chosen, at))
            for (before_ns, before), (spent, chosen) in found.items()
            for at, (time_ns, size) in enumerate(own)
            if (lost := spent + time_ns + price * size - least_cost) <= most_cost
        }
        if len(found) > _MOST_KEPT:
            return []
    fitting = [key for key in found if key[0] < most_ns and key[1] < most_bytes]
    return [found[key][1] for key in sorted(fitting)]
