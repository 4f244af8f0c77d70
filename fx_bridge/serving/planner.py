"""Planners of requests to a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import nn

from fx_bridge.costs.operators import has_experts
from fx_bridge.options import (
    DEFAULT_COSTS,
    DEFAULT_PLACEMENT,
    DEFAULT_SEARCH,
    Costs,
    Placement,
    Search,
)
from fx_bridge.serving.graphs import ServingGraphs
from fx_bridge.serving.host_words import HostWordsModel, check_search
from fx_bridge.serving.hosted import HostedPlan
from fx_bridge.serving.plan import ServingPlan
from fx_bridge.serving.request import Request
from solver import Device
from solver.model.checks import check_choice
from solver.model.job import SERVING_OBJECTIVES, Host, ServingObjective
from solver.offload.contexts import OffloadResult
from solver.offload.instance import OffloadInstance
from solver.serving.captured import solve_captured_context
from solver.serving.evaluate import ServingResult
from solver.serving.solve import solve_job


class ServingPlanner(ServingGraphs):
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
        weights and caches. With a host that is what counts, and links from ``"host"`` to a device
        load weights.
    host : Host, optional
        Where weights are that do not fit the devices, which are then in pipeline order. Halves of
        layers, or what `whole_layers` and `placement` keep whole, are resident, streamed, or run on
        the host, which pins may name ``"host"``; the engine may be ``"llama.cpp"``.
    weight_bytes : mapping of str to int, optional
        Bytes of weights as they will be stored, by name
        (:meth:`fx_bridge.CapturedGraph.with_weight_bytes`).

    Raises
    ------
    PartitionError
        If the model cannot be served, or an argument is invalid.
    """

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
        job = self.job(grows=any_context or objective == "context")
        job = job.replace(objective=objective, first_token_limit_ns=first_token_limit_ns)
        solved: ServingResult | OffloadResult
        if job.host is not None and self._engine is not None:
            check_search(self._engine, search.solver, search.without, first_token_limit_ns)
            instance = OffloadInstance.of(job)
            model = HostWordsModel.of(self.graphs, instance, job.batch, self._engine)
            solved = model.solve(search.limits)
        elif objective == "context" and job.others:
            solved = solve_captured_context(
                job,
                self.phases,
                search.limits,
                least=max(self._request.calls),
                solver=search.solver,
                without=search.without,
            )
        else:
            solved = solve_job(job, search.limits, solver=search.solver, without=search.without)
        has_any = any(map(has_experts, self.graphs.values()))
        experts_read = self._costs.experts_read if has_any else None
        made = HostedPlan if job.host else ServingPlan
        return made(self.step, self.graphs, self._request, job, solved, experts_read)


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
    host: Host | None = None,
    weight_bytes: Mapping[str, int] = MappingProxyType({}),
    search: Search = DEFAULT_SEARCH,
) -> ServingPlan:
    """Find the best plan to serve a causal language model; prompts and tokens share it.

    Parameters
    ----------
    model, request, devices, whole_layers, engine, placement, costs, host, weight_bytes
        See :class:`fx_bridge.serving.planner.ServingPlanner`, which finds several plans.
    objective, first_token_limit_ns, any_context, search
        See :meth:`fx_bridge.serving.planner.ServingPlanner.plan`.

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
        host=host,
        weight_bytes=weight_bytes,
    )
    return planner.plan(
        objective, first_token_limit_ns=first_token_limit_ns, any_context=any_context, search=search
    )
