"""From a language model to the plan that serves it best, and to a placed model that serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.layers import layer_calls, repeated_modules
from fx_bridge.capture.modules import operators_of
from fx_bridge.digraph import to_digraph
from fx_bridge.interop.engines import engine_words, placement_for
from fx_bridge.interop.words import Words
from fx_bridge.options import (
    DEFAULT_COSTS,
    DEFAULT_PLACEMENT,
    DEFAULT_SEARCH,
    Costs,
    Placement,
    Search,
)
from fx_bridge.serving.phases import capture_phases
from fx_bridge.serving.placed import PlacedStep, part_of, place_step
from fx_bridge.serving.step import CACHES, ServeStep, serve_step
from fx_bridge.split.pins import with_hand_made
from solver import (
    ColocationGroup,
    Device,
    PartitionError,
    PartitionPlan,
    PartitionProblem,
    problem_from_digraph,
)
from solver.evaluation.evaluate import Evaluation
from solver.model.checks import check_choice, check_natural, check_positive
from solver.serving.phases import Phases
from solver.serving.problem import (
    SERVING_OBJECTIVES,
    ServingMetrics,
    ServingObjective,
    ServingProblem,
)
from solver.serving.solve import ServingResult, solve_serving


@dataclass(frozen=True, slots=True)
class Request:
    """What is served at once: sequences, their prompt, and the tokens after it.

    Parameters
    ----------
    batch : int
        Sequences that are served together, all at one position.
    context : int
        Positions of a sequence; the objective ``context`` asks for the most.
    prompt : int
        Tokens of the prompt.
    generate : int
        Tokens after the prompt.
    chunk : int, optional
        Most tokens of the prompt in one call; None is all of them.

    Raises
    ------
    PartitionError
        If a number is not positive, or a prompt and its tokens do not fit the context.

    Examples
    --------
    >>> Request(prompt=700, chunk=512).calls
    {512: 1, 188: 1}
    """

    batch: int = 1
    context: int = 4096
    prompt: int = 512
    generate: int = 128
    chunk: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "context", "prompt"):
            check_positive(getattr(self, name), name)
        check_natural(self.generate, "generate")
        if self.chunk is not None:
            check_positive(self.chunk, "chunk")
        if self.prompt + self.generate > self.context:
            raise PartitionError(
                f"a prompt of {self.prompt} and {self.generate} more tokens do not fit a context "
                f"of {self.context}; write a context of at least {self.prompt + self.generate}"
            )

    @property
    def calls(self) -> dict[int, int]:
        """How often the step is called for a prompt, by the number of tokens; most tokens first."""
        whole = min(self.chunk or self.prompt, self.prompt)
        found = {whole: self.prompt // whole}
        if rest := self.prompt % whole:
            found[rest] = 1
        return found


@dataclass(frozen=True)
class ServingPlan:
    """A model, its plan, and what the plan gives.

    Attributes
    ----------
    step : ServeStep
        With the context of the request.
    graphs : mapping of int to CapturedGraph
        By the number of tokens.
    request : Request
        What was asked for.
    asked : ServingProblem
        With the context that the request had.
    solved : ServingResult
        Status, plan, value, bound, and the metrics.
    """

    step: ServeStep
    graphs: Mapping[int, CapturedGraph]
    request: Request
    asked: ServingProblem = field(repr=False)
    solved: ServingResult = field(repr=False)

    @property
    def plan(self) -> PartitionPlan:
        """The plan, of the operators of all graphs.

        Raises
        ------
        PartitionError
            If there is none; the message says why.
        """
        if self.solved.plan is None:
            raise PartitionError(
                f"there is no plan to use ({self.solved.status.value}): {self.solved.reason}"
            )
        return self.solved.plan

    @property
    def metrics(self) -> ServingMetrics:
        """What the plan gives."""
        assert self.plan
        assert self.solved.metrics is not None
        return self.solved.metrics

    @property
    def context(self) -> int:
        """The context of the plan: that of the request, or the most that fits if that was asked."""
        return self.solved.problem.context

    @cached_property
    def evaluations(self) -> Mapping[str, Evaluation]:
        """What the plan costs in each phase: calls of a number of tokens."""
        return self.solved.problem.phases.evaluate(self.plan)

    @property
    def memory_bytes(self) -> dict[str, int]:
        """What every device of the problem holds at most: weights, caches and values."""
        found: dict[str, int] = {}
        for evaluation in self.evaluations.values():
            for usage in evaluation.usage:
                found[usage.device] = max(found.get(usage.device, 0), usage.memory_bytes)
        return found

    @property
    def layers(self) -> dict[str, list[str]]:
        """The layers that have operators on each used device, in the order of the devices."""
        captured = next(iter(self.graphs.values()))
        on: dict[str, list[str]] = {device: [] for device in self.plan.device_order}
        for path in repeated_modules(captured):
            names = operators_of(captured, path)
            for device in dict.fromkeys(self.plan.assignment[name] for name in names):
                on[device].append(path)
        return on

    def words(self, engine: str) -> Words:
        """Return the plan in the words of an engine; see :func:`fx_bridge.interop.words`.

        Raises
        ------
        PartitionError
            If there is no plan, or the engine has no words for it.
        """
        captured = next(iter(self.graphs.values()))
        return engine_words(captured, part_of(captured, self.plan), engine)

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
            If there is no plan, or a device is not on this machine, or the plan is for another
            context than the step has.
        """
        if self.context != self.step.context:
            raise PartitionError(
                f"the plan is for a context of {self.context}, and the step has "
                f"{self.step.context}; plan again with Request(context={self.context})"
            )
        return place_step(self.graphs, self.plan, devices, context=self.step.context)


def plan_serving(
    model: nn.Module,
    request: Request | None = None,
    *,
    devices: Sequence[Device],
    objective: ServingObjective = "request",
    first_token_limit_ns: int | None = None,
    whole_layers: bool = False,
    engine: str | None = None,
    any_context: bool = False,
    placement: Placement = DEFAULT_PLACEMENT,
    costs: Costs = DEFAULT_COSTS,
    search: Search = DEFAULT_SEARCH,
) -> ServingPlan:
    """Find the plan that serves a causal language model best, prompts and tokens by one plan.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        As :func:`fx_bridge.serving.step.serve_step` takes it; its weights may be on the meta
        device.
    request : Request, optional
        Sequences, context, prompt and tokens.
    devices : sequence of Device
        At least one.
    objective : {"request", "token", "throughput", "context"}
        Least time of the request; least time of a token; most tokens in a second, by as many groups
        of sequences as devices that are used; most tokens that fit.
    first_token_limit_ns : int, optional
        Most time of the prompt; for the objective ``token``.
    whole_layers : bool
        Divide no layer, as engines that serve do not: no outermost repeated module. All that is
        before the first layer is on one device too, and all that is after the last.
    engine : str, optional
        Plan what this engine has words for, such as ``"vllm"``: whole layers, and the ends where it
        has them (:func:`fx_bridge.interop.engines.placement_for`).
    any_context : bool
        Capture how values grow with the context, as the objective ``context`` always does, so that
        :class:`solver.serving.contexts.Contexts` says of any plan which contexts fit.
    placement : Placement
        Which modules stay whole besides, and what is pinned.
    costs : Costs
        Links, speeds, attention, and what counts as memory: with ``"weights"`` those and caches.
    search : Search
        Its limits count for all searches together.

    Returns
    -------
    ServingPlan
        Also where no plan exists: the status of `solved` says so.

    Raises
    ------
    PartitionError
        If the model cannot be served, or an argument is invalid.
    """
    request = Request() if request is None else request
    check_choice(objective, SERVING_OBJECTIVES, "objective")
    devices = tuple(devices)
    step = _step(model, request)
    longest = max(_cache_limits(step).values(), default=0)
    if objective == "context" and longest > request.context:
        # From there on all bytes grow in proportion.
        request = replace(request, context=longest)
        step = _step(model, request)
    counts = (*request.calls, 1)
    graphs = capture_phases(step, counts)
    used = {device.device_class: costs.specs.get(device.device_class) for device in devices}
    costs = replace(costs, specs={name: spec for name, spec in used.items() if spec is not None})
    first = next(iter(graphs.values()))
    if engine is not None:
        placement, whole_layers = placement_for(engine, first, placement), True
    elif whole_layers:
        layers = (*placement.keep_whole, *repeated_modules(first))
        placement = replace(placement, keep_whole=layers)

    def phases(of: Mapping[int, CapturedGraph]) -> Phases:
        problems = {}
        for count, captured in of.items():
            ends = _ends(captured) if whole_layers else []
            problems[_phase(count)] = _problem(captured, devices, placement, costs, ends)
        return Phases(problems)

    own = phases(graphs)
    longer = None
    if (any_context or objective == "context") and costs.memory_model != "weights":
        other = _step(model, replace(request, context=2 * request.context))
        longer = other.context, phases(capture_phases(other, counts))
    problem = ServingProblem(
        phases=own,
        prompt_runs={_phase(count): runs for count, runs in request.calls.items()},
        token_phase=_phase(1),
        generate=request.generate,
        batch=request.batch,
        context=request.context,
        cache_bytes_per_token=cache_growth(step, own.weights),
        cache_limits=_cache_limits(step),
        longer=longer,
    )
    limit_ns = first_token_limit_ns
    solved = solve_serving(problem, objective, search.limits, first_token_limit_ns=limit_ns)
    return ServingPlan(step, graphs, request, problem, solved)


def _step(model: nn.Module, request: Request) -> ServeStep:
    return serve_step(model, request.batch, request.context, max(request.calls))


def _ends(captured: CapturedGraph) -> list[ColocationGroup]:
    """Return what runs before the first layer, and what runs after the last."""
    names = [node.name for node in captured.operators]
    inside = [at for at, call in enumerate(layer_calls(captured).values()) if call is not None]
    if not inside:
        return []
    ends = {"before the layers": names[: inside[0]], "after the layers": names[inside[-1] + 1 :]}
    return [ColocationGroup(tuple(own), side) for side, own in ends.items() if own]


def _phase(count: int) -> str:
    return f"{count} tokens" if count > 1 else "1 token"


def _problem(
    captured: CapturedGraph,
    devices: Sequence[Device],
    placement: Placement,
    costs: Costs,
    together: Sequence[ColocationGroup],
) -> PartitionProblem:
    graph = to_digraph(captured, costs=costs, keep_whole=placement.keep_whole)
    settings: dict[str, Any] = {
        "interconnect": costs.interconnect,
        "memory_model": costs.memory_model,
    }
    problem = problem_from_digraph(graph, devices, **settings)
    return with_hand_made(
        problem.replace(colocation=(*problem.colocation, *together)),
        captured,
        pins=placement.pins,
        cut_after=placement.cut_after,
    )


def cache_growth(step: ServeStep, weights: Iterable[str]) -> dict[str, int]:
    """Return the bytes of a position in every cache among some weights, by its key."""
    known = set(weights)
    found: dict[str, int] = {}
    for name, tensor in step.named_buffers():
        if name.startswith(f"{CACHES}.") and name in known:
            grows = name.rpartition(".")[2] in ("keys", "values")
            found[name] = tensor.nbytes // tensor.shape[2] if grows else 0
    return found


def _cache_limits(step: ServeStep) -> dict[str, int]:
    """Return the most positions of caches of layers with a sliding window, by their keys."""
    from fx_bridge.serving.caches import KeyValueCache

    return {
        f"{CACHES}.{number}.{name}": cache.limit
        for number, cache in enumerate(step.caches)
        if isinstance(cache, KeyValueCache) and cache.limit is not None
        for name, _ in cache.named_buffers()
    }
