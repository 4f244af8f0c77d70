"""Plans for language models on too little memory: resident, streamed and host-computed units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, Literal

import torch
from torch import nn

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.digraph import to_digraph
from fx_bridge.interop.words import Words
from fx_bridge.options import DEFAULT_COSTS, DEFAULT_SEARCH, Costs, Search
from fx_bridge.placement.checks import checked_stages
from fx_bridge.placement.model import place_all
from fx_bridge.placement.slots import padding_bytes
from fx_bridge.serving.graphs import cache_growth
from fx_bridge.serving.halves import half_layers
from fx_bridge.serving.hops import check_links, crossing_bytes, host_hop_ns, stage_hop_ns
from fx_bridge.serving.host_stages import plan_of_stages, stages_of
from fx_bridge.serving.host_words import HostWordsModel
from fx_bridge.serving.phases import capture_phases, check_prompt, forgotten_states
from fx_bridge.serving.placed import PlacedStep
from fx_bridge.serving.request import Request
from fx_bridge.serving.step import ServeStep, serve_step
from fx_bridge.serving.whole_model import plan_of_model
from fx_bridge.split.by_plan import split_by_plan
from solver import PCIE, Device, PartitionError, PartitionPlan, problem_from_digraph
from solver.model.checks import check_choice, only_given
from solver.model.device_text import as_devices
from solver.model.devices import STAGING_HOST
from solver.model.plan import MODES
from solver.offload.evaluate import evaluate_offload
from solver.offload.model import OffloadDevice, OffloadHost, OffloadProblem
from solver.offload.phases import OffloadPhases
from solver.offload.plan import OffloadResult, plan_phases
from solver.offload.units import units_of

StreamedObjective = Literal["request", "token"]

STREAMED_OBJECTIVES: Final[tuple[str, ...]] = ("request", "token")
"""Objectives of plans with a host: the time of a request, or of a token."""


@dataclass(frozen=True)
class StreamedServingPlan:
    """Plan of a served model with a host: a device and a mode for every unit.

    Attributes
    ----------
    step : ServeStep
        The model with its caches.
    request : Request
        The planned request.
    objective : {"request", "token"}
        The minimised time.
    graphs : mapping of int to CapturedGraph
        Graphs by the number of tokens per call; only that of one token for ``token``.
    problems : mapping of int to OffloadProblem
        Times, weights and caches of the units in each graph.
    solved : OffloadResult
        Status, plan, time and bound; with an engine, among the plans that it can run.
    """

    step: ServeStep
    request: Request
    objective: StreamedObjective
    graphs: dict[int, CapturedGraph]
    problems: dict[int, OffloadProblem]
    solved: OffloadResult = field(repr=False)
    __repr__ = only_given

    @property
    def captured(self) -> CapturedGraph:
        """The graph of a call for one token."""
        return self.graphs[1]

    @property
    def problem(self) -> OffloadProblem:
        """The problem of one token."""
        return self.problems[1]

    @property
    def runs(self) -> dict[int, int]:
        """Number of calls in the objective, by their number of tokens."""
        return _runs(self.request, self.objective)

    @property
    def token_ns(self) -> Fraction:
        """Nanoseconds per token."""
        return self._call_ns(1)

    @property
    def first_token_ns(self) -> Fraction | None:
        """Nanoseconds of all calls for the prompt; None if only a token was planned."""
        if self.objective == "token":
            return None
        calls = self.request.calls.items()
        return sum((count * self._call_ns(tokens) for tokens, count in calls), Fraction())

    def _call_ns(self, tokens: int) -> Fraction:
        value = evaluate_offload(self.problems[tokens], self.plan).value_ns
        assert value is not None
        return value

    @property
    def plan(self) -> PartitionPlan:
        """The plan.

        Raises
        ------
        PartitionError
            If no plan was found.
        """
        if self.solved.plan is None:
            raise PartitionError(
                f"there is no plan to use ({self.solved.status.value}); give more memory"
            )
        return self.solved.plan

    def host_words(self, engine: str) -> HostWordsModel:
        """Return the translation of plans into arguments of an engine, such as ``"llama.cpp"``.

        Raises
        ------
        PartitionError
            If the engine cannot place units on a host, or does not support this model.
        """
        return _host_words(self.request, self.graphs, _phases(self.problems, self.runs), engine)

    def words(self, engine: str) -> Words:
        """Return the plan as arguments of an engine, such as ``"llama.cpp"``.

        Raises
        ------
        PartitionError
            If there is no plan, or the engine cannot run it. One line then names a misplaced unit
            and the nearest plan with its cost.
        """
        return self.host_words(engine).words(self.plan)

    def plan_of_model(self, captured: CapturedGraph) -> PartitionPlan:
        """Return the plan of the model itself, captured without caches.

        The host is one of its devices, and each streamed unit is a stage of its own.

        Raises
        ------
        PartitionError
            If there is no plan.
        """
        units = _operators_of_units(self.captured)
        staged = plan_of_stages(units, stages_of(self.problem, self.plan))
        return plan_of_model(captured, self.captured, staged)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Number of units per mode, by device."""
        plan = self.plan
        found = {place.name: dict.fromkeys(MODES, 0) for place in self.problem.devices}
        for name, mode in plan.modes.items():
            found[plan.assignment[name]][mode] += 1
        return {device: {str(mode): n for mode, n in of.items()} for device, of in found.items()}

    @property
    def slots(self) -> int:
        """Number of streamed units that fit into the buffer of every device; at least 1."""
        cost = evaluate_offload(self.problem, self.plan)
        sizes: dict[str, list[int]] = {place.name: [] for place in self.problem.devices}
        for unit in self.problem.units:
            if self.plan.modes[unit.name] == "streamed":
                sizes[self.plan.assignment[unit.name]].append(unit.loaded_bytes)
        fitting = [
            len(own) if (buffer := cost.buffer_bytes[device]) is None else buffer // max(own)
            for device, own in sizes.items()
            if own
        ]
        return max(1, min(fitting, default=1))

    def place(
        self,
        devices: str | torch.device | Mapping[str, str | torch.device] | None = None,
        *,
        tokens: Sequence[int] = (1,),
        host: str | torch.device = "cpu",
    ) -> PlacedStep:
        """Return the step placed by the plan, for one process.

        Resident units are on their devices, and the units of the host on the host. Streamed units
        share `slots` slots per device (:func:`fx_bridge.placement.model.place`).

        Parameters
        ----------
        devices : optional
            Torch devices for those of the plan; see :func:`fx_bridge.placement.model.place`.
        tokens : sequence of int
            Numbers of tokens per call besides one, such as the chunks of a prompt.
        host : str or torch.device
            Torch device of the host's units.

        Raises
        ------
        PartitionError
            If there is no plan, or a device is not on this machine.
        """
        graphs = capture_phases(self.step, tuple(dict.fromkeys((*tokens, 1))))
        stages = stages_of(self.problem, self.plan)
        splits, streamed = [], set()
        for captured in graphs.values():
            split = split_by_plan(captured, plan_of_stages(_operators_of_units(captured), stages))
            splits.append(split)
            names = list(checked_stages(split))
            streamed |= {names[at] for at, stage in enumerate(stages) if stage.mode == "streamed"}
        own = [place.name for place in self.problem.devices]
        given = devices if isinstance(devices, Mapping) else dict.fromkeys(own, devices)
        used = {stage.device for stage in stages}
        where = {name: given.get(name) or name for name in own if name in used}
        if STAGING_HOST in used:
            where[STAGING_HOST] = host
        placed = place_all(splits, where, tied_weights="copy", streamed=streamed, slots=self.slots)
        models = dict(zip(graphs, placed, strict=True))
        return PlacedStep(models, self.step.context, forgotten_states(graphs))


def plan_streamed_serving(
    model: nn.Module,
    request: Request | None = None,
    *,
    devices: Sequence[OffloadDevice] | str,
    host: OffloadHost | None = None,
    host_class: str | None = "cpu",
    objective: StreamedObjective = "request",
    engine: str | None = None,
    costs: Costs = DEFAULT_COSTS,
    search: Search = DEFAULT_SEARCH,
) -> StreamedServingPlan:
    """Minimise the time of a request on devices too small for the model and its caches.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model that :func:`fx_bridge.serving.step.serve_step` accepts.
    request : Request, optional
        The request; the objective ``token`` uses only its batch and context.
    devices : sequence of OffloadDevice, or str
        Devices in pipeline order, each with its link from the host. As text such as
        ``"24GB,12GB"`` or ``"auto"`` they have PCIe. Their memory holds weights and caches.
    host : OffloadHost, optional
        Memory of the host; unlimited if left out.
    host_class : str or None
        Speed of the host, a key of ``costs.specs``; with None no unit runs on the host.
    objective : {"request", "token"}
        Time of a prompt and all tokens after it, or of a token.
    engine : str, optional
        Restrict the search to plans that this engine can run: ``"llama.cpp"``.
    costs : Costs
        Speeds, the link between devices, and links from devices to ``"host"`` that differ from
        those in the other direction.
    search : Search
        Limits only; there is one solver for plans with a host.

    Returns
    -------
    StreamedServingPlan
        The answer, with a status, even if no plan exists.

    Raises
    ------
    PartitionError
        If the model cannot be served or the engine does not support it, or an argument is invalid.

    Notes
    -----
    A unit is half a layer: the operators up to the end of its first part with weights, usually
    attention with its cache, or the rest. The operators before the first layer are one unit, and
    those after the last another. See ``docs/offload.md`` for the cost of a plan.
    """
    request = Request() if request is None else request
    if search.solver != "auto" or search.without:
        raise PartitionError(
            "search names a solver or steps to leave out, and plans with a host have one solver; "
            "write Search(limits) alone"
        )
    check_choice(objective, STREAMED_OBJECTIVES, "objective")
    if isinstance(devices, str):
        devices = [OffloadDevice(device, PCIE.default) for device in as_devices(devices)]
    places = tuple(devices)
    check_links(costs.interconnect, places)
    costs = _known_costs(places, host_class, costs)
    step = serve_step(model, request.batch, request.context, max(request.calls))
    runs = _runs(request, objective)
    graphs = capture_phases(step, tuple(dict.fromkeys((*runs, 1))))
    if objective == "request":
        check_prompt(graphs, request.calls)
    host = OffloadHost() if host is None else host
    problems = {
        tokens: _problem_of(step, captured, places, host, host_class, costs)
        for tokens, captured in graphs.items()
    }
    phases = _phases(problems, runs)
    if engine is None:
        solved = plan_phases(phases, search.limits)
    else:
        solved = _host_words(request, graphs, phases, engine).solve(search.limits)
    return StreamedServingPlan(step, request, objective, graphs, problems, solved)


def _runs(request: Request, objective: StreamedObjective) -> dict[int, int]:
    """Return the number of calls in the objective, by their number of tokens."""
    if objective == "token":
        return {1: 1}
    runs = dict(request.calls)
    if request.generate:
        runs[1] = runs.get(1, 0) + request.generate
    return runs


def _phases(problems: Mapping[int, OffloadProblem], runs: Mapping[int, int]) -> OffloadPhases:
    return OffloadPhases(tuple(problems[tokens] for tokens in runs), tuple(runs.values()))


def _host_words(
    request: Request, graphs: Mapping[int, CapturedGraph], phases: OffloadPhases, engine: str
) -> HostWordsModel:
    return HostWordsModel(graphs[1], phases, request.batch * max(graphs), engine)


def _known_costs(places: Sequence[OffloadDevice], host_class: str | None, costs: Costs) -> Costs:
    """Return costs restricted to the device classes of the devices and the host."""
    classes = {place.device.device_class for place in places}
    classes |= set() if host_class is None else {host_class}
    if unknown := classes - set(costs.specs):
        known = ", ".join(costs.specs)
        raise PartitionError(f"no speed is known for class {min(unknown)!r}; write one of {known}")
    return replace(costs, specs={n: s for n, s in costs.specs.items() if n in classes})


def _problem_of(
    step: ServeStep,
    captured: CapturedGraph,
    places: Sequence[OffloadDevice],
    host: OffloadHost,
    host_class: str | None,
    costs: Costs,
) -> OffloadProblem:
    """Return the problem of one call, with half layers as units."""
    # One probe device per class makes the problem hold times of all classes, the host's included.
    probes = [Device(f"probe:{name}", device_class=name) for name in sorted(costs.specs)]
    graph = to_digraph(captured, costs=costs, colocation=False)
    asked = problem_from_digraph(graph, probes, memory_model="weights")
    units = _operators_of_units(captured)
    growth = cache_growth(step, asked.weights)
    padding = {key: padding_bytes(w) for key, w in captured.storage_table.weights.items()}
    size_bytes = crossing_bytes(asked, units)
    return OffloadProblem(
        units_of(asked, units, host_class, caches=growth, padding_bytes=padding),
        tuple(places),
        host,
        stage_hop_ns=stage_hop_ns(costs.interconnect, places, size_bytes),
        host_hop_ns=host_hop_ns(costs.interconnect, places, size_bytes),
    )


def _operators_of_units(captured: CapturedGraph) -> dict[str, tuple[str, ...]]:
    return {name: half.operators for name, half in half_layers(captured).items()}
