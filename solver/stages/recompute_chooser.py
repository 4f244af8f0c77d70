"""Choose the operators to recompute in the stages of a plan, so that they fit and take least time.

The best choice for a device is known (:mod:`solver.stages.least_recomputation`), except for the
memory of a stage while it runs forward, or recomputes. So its rows are evaluated, and if the
fastest choices do not fit, the program runs again with fewer bytes, by the excess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from solver.evaluation.evaluate import evaluate
from solver.evaluation.recomputed_memory import RecomputedStage
from solver.evaluation.usage import microbatches_in_flight
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.recomputation import Recomputation, required, with_required
from solver.stages.least_recomputation import StageParts, least_recomputation
from solver.stages.recompute_choices import RecomputeChoices

_MOST_TRIED = 8
"""Most choices to evaluate, the fastest ones."""
_ROUNDS = 6


class RecomputeChooser:
    """Completes plans of a problem with recomputation; caches its results for stages."""

    def __init__(self, problem: PartitionProblem) -> None:
        self._problem = problem
        self._bytes: dict[tuple[tuple[int, ...], frozenset[str]], tuple[int, int]] = {}
        self._found: dict[tuple[object, ...], frozenset[str] | None] = {}

    @cached_property
    def choices(self) -> Mapping[str, RecomputeChoices]:
        """The choices of parts, by class of devices."""
        classes = {device.device_class for device in self._problem.devices}
        return {name: RecomputeChoices(self._problem, name) for name in sorted(classes)}

    def completed(self, plan: PartitionPlan) -> PartitionPlan:
        """Return a plan that recomputes operators on devices that it does not fit on otherwise.

        Devices on which no choice fits do not change.
        """
        plan = with_required(self._problem, replace(plan, recomputed=frozenset()))
        evaluation = evaluate(self._problem, plan)
        members: list[list[int]] = [[] for _ in plan.stages]
        for index, op in enumerate(self._problem.operators):
            members[plan.stage_index[op.name]].append(index)
        in_flight = microbatches_in_flight(self._problem, plan)
        again = plan.recomputed
        for usage in evaluation.usage:
            free_bytes = usage.capacity_bytes
            if free_bytes is None or usage.memory_bytes <= free_bytes:
                continue
            own = [
                (tuple(members[number]), in_flight[number])
                for number, stage in enumerate(plan.stages)
                if stage.device == usage.device
            ]
            device_class = self._problem.device_of[usage.device].device_class
            free_bytes -= usage.weights_bytes + usage.received_bytes
            key = (device_class, tuple(own), free_bytes)
            if key not in self._found:
                self._found[key] = self._cheapest(device_class, own, free_bytes)
            again |= self._found[key] or frozenset()
        return with_required(self._problem, replace(plan, recomputed=again))

    def _held_bytes(self, members: tuple[int, ...], in_flight: int, again: frozenset[str]) -> int:
        """Return the bytes of a stage, without weights and received values."""
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
        self, device_class: str, stages: Sequence[tuple[tuple[int, ...], int]], free_bytes: int
    ) -> frozenset[str] | None:
        """Return the operators to recompute so that the stages of a device fit, or None.

        Stages are operators with the microbatches in flight.
        """
        choices, operators = self.choices[device_class], self._problem.operators
        parts = [
            StageParts.of(choices, choices.parts(members), in_flight)
            for members, in_flight in stages
        ]
        always_bytes = sum(own.always_bytes for own in parts)
        left_bytes = free_bytes
        for _ in range(_ROUNDS):
            least = least_recomputation(parts, left_bytes, _MOST_TRIED)
            unseen_bytes: list[int] = []
            for chosen in least.found:
                again = [
                    frozenset(operators[index].name for index in chosen.again.intersection(members))
                    for members, _ in stages
                ]
                held_bytes = sum(
                    self._held_bytes(*stage, names)
                    for stage, names in zip(stages, again, strict=True)
                )
                if held_bytes <= free_bytes:
                    return frozenset().union(*again)
                unseen_bytes.append(held_bytes - chosen.held_bytes - always_bytes)
            if not unseen_bytes:
                break
            left_bytes = min(left_bytes - 1, free_bytes - min(unseen_bytes))
        return None
