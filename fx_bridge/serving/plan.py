"""Optimal serving plans of a language model, and models placed by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.layers import repeated_modules
from fx_bridge.capture.modules import module_operators
from fx_bridge.choices import ExpertsRead
from fx_bridge.costs.operators import has_experts
from fx_bridge.interop.engines import engine_words
from fx_bridge.interop.words import Words
from fx_bridge.options import (
    DEFAULT_COSTS,
    DEFAULT_PLACEMENT,
    DEFAULT_SEARCH,
    Costs,
    Placement,
    Search,
)
from fx_bridge.serving.graphs import ServingGraphs
from fx_bridge.serving.placed import PlacedStep, part_of, place_step
from fx_bridge.serving.request import Request
from fx_bridge.serving.step import ServeStep
from fx_bridge.serving.whole_model import plan_of_model
from solver import (
    Device,
    Diagnosis,
    PartitionError,
    PartitionPlan,
    SolveLimits,
    diagnose,
)
from solver.evaluation.evaluate import Evaluation
from solver.evaluation.result import SolveResult, judge
from solver.model.checks import check_choice, only_given
from solver.model.job import SERVING_OBJECTIVES, Job, ServingObjective
from solver.serving.captured import solve_captured_context
from solver.serving.evaluate import ServingResult
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
        Status, plan, bound, and the plan's :class:`~solver.serving.evaluate.ServingEvaluation`.
    experts_read : {"average", "most", "all"} or None
        Experts of a mixture that a step reads; None if the model has no experts.
    """

    step: ServeStep
    graphs: Mapping[int, CapturedGraph]
    request: Request
    asked: Job = field(repr=False)
    solved: ServingResult = field(repr=False)
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
        assert self.plan
        assert self.solved.evaluation is not None
        return self.solved.evaluation.metrics

    @property
    def job(self) -> Job:
        """The job with the context of the plan."""
        return self.asked if self.solved.evaluation is None else self.solved.evaluation.job

    @property
    def context(self) -> int:
        """Context of the request, or the largest that fits for the objective ``context``."""
        return self.job.context

    @property
    def evaluations(self) -> Mapping[str, Evaluation]:
        """Cost of the plan by phase; a phase is all calls of one number of tokens."""
        assert self.plan
        assert self.solved.evaluation is not None
        return self.solved.evaluation.phases

    @cached_property
    def baseline(self) -> ServingResult:
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
        on: dict[str, list[str]] = {device: [] for device in self.plan.device_order}
        operators = module_operators(captured)
        for path in repeated_modules(captured):
            for device in dict.fromkeys(self.plan.assignment[name] for name in operators[path]):
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
        return plan_of_model(captured, next(iter(self.graphs.values())), self.plan)

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
        if self.context != self.step.context:
            raise PartitionError(
                f"the plan is for a context of {self.context}, and the step has "
                f"{self.step.context}; plan again with Request(context={self.context})"
            )
        return place_step(self.graphs, self.plan, devices, context=self.step.context)


class ServingPlanner:
    """Planner for one request of a causal language model; all its plans share one capture.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model that :func:`fx_bridge.serving.step.serve_step` accepts. Its weights may be on the
        meta device.
    request : Request, optional
        Sequences, context, prompt and tokens.
    devices : sequence of Device, or str
        At least one device; see :func:`fx_bridge.partition_module`.
    whole_layers : bool
        Keep each layer, an outermost repeated module, on one device, as serving engines do. So
        are all operators before the first layer, and all after the last.
    engine : str, optional
        Restrict the search to plans that this engine can run, such as ``"vllm"``: whole layers,
        and both ends of the model at its fixed places
        (:func:`fx_bridge.interop.engines.placement_for`).
    placement : Placement
        Further modules that stay whole, and pins.
    costs : Costs
        Links, speeds, attention, experts and the memory model, in which ``"weights"`` counts
        weights and caches.

    Raises
    ------
    PartitionError
        If the model cannot be served, or an argument is invalid.
    """

    def __init__(
        self,
        model: nn.Module,
        request: Request | None = None,
        *,
        devices: Sequence[Device] | str,
        whole_layers: bool = False,
        engine: str | None = None,
        placement: Placement = DEFAULT_PLACEMENT,
        costs: Costs = DEFAULT_COSTS,
    ) -> None:
        self._request = Request() if request is None else request
        self._graphs = ServingGraphs(
            model,
            self._request,
            devices,
            whole_layers=whole_layers,
            engine=engine,
            placement=placement,
            costs=costs,
        )
        graphs = self._graphs.graphs.values()
        self._experts_read = costs.experts_read if any(map(has_experts, graphs)) else None

    def plan(
        self,
        objective: ServingObjective = "request",
        *,
        first_token_limit_ns: int | None = None,
        any_context: bool = False,
        search: Search = DEFAULT_SEARCH,
    ) -> ServingPlan:
        """Find the best plan for one objective.

        Parameters
        ----------
        objective : {"request", "token", "throughput", "context"}
            Least time of the request; least time of a token; most tokens per second, with any
            number of interleaved groups of sequences; most tokens that fit.
        first_token_limit_ns : int, optional
            Nanoseconds that the prompt may take; for the objective ``token``.
        any_context : bool
            Also capture longer contexts, as the objective ``context`` always does.
            :class:`solver.serving.contexts.Contexts` can then bound the context of any plan.
        search : Search
            Solver, steps to leave out, and limits of all searches of this plan together.

        Returns
        -------
        ServingPlan
            The answer even if no plan exists; see the status of `solved`.

        Raises
        ------
        PartitionError
            If an argument is invalid.
        """
        check_choice(objective, SERVING_OBJECTIVES, "objective")
        job = self._graphs.job(grows=any_context or objective == "context")
        job = job.replace(objective=objective, first_token_limit_ns=first_token_limit_ns)
        asked: Any = {"solver": search.solver, "without": search.without}
        if objective == "context" and job.others:
            least = max(self._request.calls)
            solved = solve_captured_context(
                job, self._graphs.phases, search.limits, least=least, **asked
            )
        else:
            solved = solve_job(job, search.limits, **asked)
        graphs = self._graphs
        return ServingPlan(
            graphs.step,
            graphs.graphs,
            self._request,
            job,
            solved,
            self._experts_read,
        )


def plan_serving(
    model: nn.Module,
    request: Request | None = None,
    *,
    devices: Sequence[Device] | str,
    objective: ServingObjective = "request",
    first_token_limit_ns: int | None = None,
    whole_layers: bool = False,
    engine: str | None = None,
    any_context: bool = False,
    placement: Placement = DEFAULT_PLACEMENT,
    costs: Costs = DEFAULT_COSTS,
    search: Search = DEFAULT_SEARCH,
) -> ServingPlan:
    """Find the best plan to serve a causal language model; prompts and tokens share it.

    Parameters
    ----------
    model, request, devices, whole_layers, engine, placement, costs
        See :class:`fx_bridge.serving.plan.ServingPlanner`, which finds several plans.
    objective, first_token_limit_ns, any_context, search
        See :meth:`fx_bridge.serving.plan.ServingPlanner.plan`.

    Returns
    -------
    ServingPlan
        The answer even if no plan exists; see the status of `solved`.

    Raises
    ------
    PartitionError
        If the model cannot be served, or an argument is invalid.
    """
    check_choice(objective, SERVING_OBJECTIVES, "objective")
    planner = ServingPlanner(
        model,
        request,
        devices=devices,
        whole_layers=whole_layers,
        engine=engine,
        placement=placement,
        costs=costs,
    )
    return planner.plan(
        objective,
        first_token_limit_ns=first_token_limit_ns,
        any_context=any_context,
        search=search,
    )
