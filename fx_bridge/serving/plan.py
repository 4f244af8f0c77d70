"""Optimal serving plans of a language model, and models placed by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.layers import repeated_modules
from fx_bridge.choices import ExpertsRead
from fx_bridge.interop.engines import engine_words
from fx_bridge.interop.words import Words
from fx_bridge.serving.placed import PlacedStep, part_of, place_step
from fx_bridge.serving.request import Request
from fx_bridge.serving.step import ServeStep
from fx_bridge.serving.whole_model import plan_of_model
from solver import (
    Diagnosis,
    PartitionError,
    PartitionPlan,
    SolveLimits,
    diagnose,
)
from solver.evaluation.evaluate import Evaluation
from solver.evaluation.result import SolveResult, judge
from solver.model.checks import only_given
from solver.model.job import Job, ServingObjective
from solver.offload.contexts import OffloadResult
from solver.serving.evaluate import ServingEvaluation, ServingResult
from solver.serving.metrics import ServingMetrics
from solver.serving.solve import solve_job


@dataclass(frozen=True)
class ServingPlan:
    """A served model, its plan, and the plan's times and memory.

    Attributes
    ----------
    step : ServeStep
        Step with the context of the request.
    graphs : mapping of int to CapturedGraph
        Graphs by the number of tokens per call.
    request : Request
        The planned request.
    asked : Job
        The job of the search, with the context of the request.
    solved : SolveResult
        Status, plan, bound, and the plan's :class:`~solver.serving.evaluate.ServingEvaluation`, or
        :class:`~solver.offload.evaluate.OffloadEvaluation` with a host.
    experts_read : {"average", "most", "all"} or None
        Experts of a mixture that a step reads; None if the model has no experts.
    """

    step: ServeStep
    graphs: Mapping[int, CapturedGraph]
    request: Request
    asked: Job = field(repr=False)
    solved: ServingResult | OffloadResult = field(repr=False)
    experts_read: ExpertsRead | None = None
    __repr__ = only_given

    @property
    def objective(self) -> ServingObjective:
        """The objective of the search."""
        return self.asked.objective

    @property
    def plan(self) -> PartitionPlan:
        """The plan, of the operators of all graphs.

        Raises
        ------
        PartitionError
            If no plan was found; the message says why.
        """
        if self.solved.plan is None:
            raise PartitionError(
                f"there is no plan to use ({self.solved.status.value}): {self.solved.reason}"
            )
        return self.solved.plan

    @property
    def metrics(self) -> ServingMetrics:
        """Times, groups and throughput of the plan."""
        return self._evaluation.metrics

    @property
    def job(self) -> Job:
        """The job with the context of the plan."""
        found = self.solved.evaluation
        return found.job if isinstance(found, ServingEvaluation) else self.asked

    @property
    def context(self) -> int:
        """Context of the request, or the largest that fits for the objective ``context``."""
        return self.job.context

    @property
    def most_tokens(self) -> float | None:
        """Tokens of all sequences that fit the plan, infinite if any number does."""
        return self._evaluation.most_tokens

    @property
    def evaluations(self) -> Mapping[str, Evaluation]:
        """Cost of the plan by phase; a phase is all calls of one number of tokens."""
        return self._evaluation.phases

    @property
    def _evaluation(self) -> ServingEvaluation:
        assert self.plan
        if not isinstance(self.solved.evaluation, ServingEvaluation):
            raise PartitionError("a plan with a host is judged as a whole; read `evaluation`")
        return self.solved.evaluation

    @cached_property
    def baseline(self) -> ServingResult | OffloadResult:
        """The greedy heuristic's answer to the same problem, computed on first access."""
        return solve_job(self.asked.replace(first_token_limit_ns=None), solver="greedy")

    def diagnose(self, limits: SolveLimits) -> Diagnosis | None:
        """Explain why no plan fits; None if memory, pins and devices are not the cause."""
        job, token = self.asked, self.asked.token_phase
        found = (diagnose(job.merged({token: 1}, name), limits) for name in job.phases)
        return next((each for each in found if each.conflict), None)

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Peak bytes of weights, caches and values, by device of the problem."""
        found: dict[str, int] = {}
        for evaluation in self.evaluations.values():
            for usage in evaluation.usage:
                found[usage.device] = max(found.get(usage.device, 0), usage.memory_bytes)
        return found

    @property
    def fullest_call(self) -> SolveResult:
        """The plan as an answer for the phase with the largest memory, for pages and graphs.

        It has no bound, because the proof covers all phases together.

        Raises
        ------
        PartitionError
            If there is no plan.
        """
        phase = max(
            self.evaluations,
            key=lambda name: sum(usage.memory_bytes for usage in self.evaluations[name].usage),
        )
        job = self.job
        return judge(phase, job.phases[phase], job.plan_of(phase, self.plan), 0.0)

    @property
    def layers(self) -> dict[str, list[str]]:
        """Layers with operators on each used device, in device order."""
        captured = next(iter(self.graphs.values()))
        plan, operators = self.plan_of(captured), captured.modules.operators
        on: dict[str, list[str]] = {name: [] for name in self.plan.device_order}
        on |= {name: [] for name in plan.device_order}
        for path in repeated_modules(captured):
            for device in dict.fromkeys(plan.assignment[name] for name in operators[path]):
                on[device].append(path)
        return on

    def words(self, engine: str) -> Words:
        """Return the plan as arguments of an engine; see :mod:`fx_bridge.interop.words`.

        Raises
        ------
        PartitionError
            If there is no plan, or the engine cannot run it.
        """
        captured = next(iter(self.graphs.values()))
        problem = next(iter(self.job.phases.values()))
        return engine_words(captured, part_of(captured, self.plan), engine, problem=problem)

    def plan_of_model(self, captured: CapturedGraph) -> PartitionPlan:
        """Return the plan of the model itself, captured without caches.

        Its modules keep their devices; see :func:`fx_bridge.serving.whole_model.plan_of_model`.

        Raises
        ------
        PartitionError
            If there is no plan.
        """
        step = next(iter(self.graphs.values()))
        return plan_of_model(captured, step, self.plan_of(step))

    def plan_of(self, captured: CapturedGraph) -> PartitionPlan:
        """Return the plan of one of the graphs, as it is split; a host is one of its devices."""
        return part_of(captured, self.plan)

    def check_context(self) -> None:
        """Raise PartitionError unless the step has the context of the plan."""
        if self.context != self.step.context:
            raise PartitionError(
                f"the plan is for a context of {self.context}, and the step has "
                f"{self.step.context}; plan again with Request(context={self.context})"
            )

    def place(
        self,
        devices: str | torch.device | Mapping[str, str | torch.device] | None = None,
    ) -> PlacedStep:
        """Return the step with every stage on its device, for one process.

        Prompts and tokens share weights and caches. See :func:`fx_bridge.placement.model.place`
        for `devices`.

        Raises
        ------
        PartitionError
            If there is no plan, a device is not on this machine, or the contexts of plan and step
            differ.
        """
        self.check_context()
        return place_step(self.graphs, self.plan, devices, context=self.step.context)
