"""Captured graphs of a served model, and its job for any context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch import nn

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.layers import layer_calls, repeated_modules
from fx_bridge.digraph import to_digraph
from fx_bridge.files.stored_types import cache_type
from fx_bridge.interop.engines import placement_for
from fx_bridge.options import DEFAULT_COSTS, DEFAULT_PLACEMENT, Costs, Placement
from fx_bridge.placement.slots import padding_bytes
from fx_bridge.serving.halves import half_layers, joined
from fx_bridge.serving.phases import capture_phases, check_prompt
from fx_bridge.serving.request import Request, phase_of
from fx_bridge.serving.step import CACHES, ServeStep, serve_step
from fx_bridge.split.pins import places_of_pins, with_hand_made
from solver import ColocationGroup, Device, PartitionError, PartitionProblem, problem_from_digraph
from solver.model.device_text import as_devices
from solver.model.job import Host, Job


class ServingGraphs:
    """Graphs of a served model, captured for each context on demand.

    Arguments are as for :class:`fx_bridge.serving.planner.ServingPlanner`. `step` has the context
    of the request, and `graphs` are its graphs, by the number of tokens per call.
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
        host: Host | None = None,
        weight_bytes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        if host is not None and placement.cut_after:
            raise PartitionError(
                "cut_after ends stages of plans without a host; leave it out, or host"
            )
        self._model, self._devices, self._host = model, as_devices(devices), host
        self._request = request = Request() if request is None else request
        self._engine, self._weight_bytes = engine, weight_bytes
        classes = {device.device_class for device in self._devices}
        if host is not None:
            costs = replace(costs, memory_model="weights")
            classes |= set() if host.device_class is None else {host.device_class}
            if unknown := classes - {*costs.specs}:
                known = ", ".join(costs.specs)
                raise PartitionError(
                    f"no speed is known for class {min(unknown)!r}; write one of {known}"
                )
        specs = {name: spec for name, spec in costs.specs.items() if name in classes}
        self._costs = replace(costs, specs=specs)
        self.step, self.graphs = self._captured(request.context)
        first = next(iter(self.graphs.values()))
        if engine is not None and host is None:
            placement, whole_layers = placement_for(engine, first, placement), True
        elif whole_layers:
            layers = (*placement.keep_whole, *repeated_modules(first))
            placement = replace(placement, keep_whole=layers)
        self._placement, self._whole_layers = placement, whole_layers
        self._phases = {request.context: self._phases_of(self.graphs)}
        self._limits = _cache_limits(self.step)

    def phases(self, context: int) -> Mapping[str, PartitionProblem]:
        """Return the problems of all phases with a context, capturing them if necessary."""
        if context not in self._phases:
            self._phases[context] = self._phases_of(self._captured(context)[1])
        return self._phases[context]

    def job(self, *, grows: bool = False) -> Job:
        """Return the job of the request.

        If it `grows`, it has the growth of values with the context, if they count as memory.
        """
        request, own, host = self._request, self.phases(self._request.context), self._host
        units: dict[str, tuple[str, ...]] = {}
        padding: dict[str, int] = {}
        pins: dict[str, frozenset[str]] = {}
        graphs = self.graphs.values() if host else ()
        for captured, problem in zip(graphs, own.values(), strict=host is not None):
            known = {name for names in units.values() for name in names}
            for unit, half in half_layers(captured).items():
                added = tuple(name for name in half.operators if name not in known)
                units[unit] = units.get(unit, ()) + added
            for key, weight in captured.storage_table.weights.items():
                padding[key] = padding_bytes(weight)
            pins |= places_of_pins(problem, captured, self._placement.pins)
        for problem in own.values() if host else ():
            units = joined(units, [group.operators for group in problem.colocation])
        grows = grows and self._costs.memory_model != "weights"
        keys = {key for problem in own.values() for key in problem.weights}
        return Job(
            own,
            phase_of(1),
            {phase_of(count): runs for count, runs in request.calls.items()},
            request.generate,
            request.batch,
            request.context,
            cache_bytes_per_token=cache_growth(self.step, keys, request.cache_type),
            cache_limits=self._limits,
            others={context: self.phases(context) for context in self._longer if grows},
            host=host,
            units=units,
            padding_bytes=padding,
            pins={name: tuple(places) for name, places in pins.items()},
        )

    @property
    def _longer(self) -> list[int]:
        """Contexts between which all bytes usually grow linearly."""
        own = self._request.context
        limits = sorted({limit for limit in self._limits.values() if limit > own})
        return [*limits, 2 * max([own, *limits])]

    def _captured(self, context: int) -> tuple[ServeStep, dict[int, CapturedGraph]]:
        calls = self._request.calls
        step = serve_step(self._model, self._request.batch, context, max(calls))
        graphs = capture_phases(step, (*calls, 1))
        check_prompt(graphs, calls)
        caches = _cache_bytes(step, self._request.cache_type) if self._request.cache_type else {}
        stored = {**self._weight_bytes, **caches}
        return step, {count: own.with_weight_bytes(stored) for count, own in graphs.items()}

    def _phases_of(self, graphs: Mapping[int, CapturedGraph]) -> dict[str, PartitionProblem]:
        return {phase_of(count): self._problem(graph) for count, graph in graphs.items()}

    def _problem(self, captured: CapturedGraph) -> PartitionProblem:
        costs, placement = self._costs, self._placement
        graph = to_digraph(captured, costs=costs, keep_whole=placement.keep_whole)
        settings: dict[str, Any] = {
            "interconnect": costs.interconnect,
            "memory_model": costs.memory_model,
        }
        problem = problem_from_digraph(graph, self._devices, **settings)
        together = _ends(captured) if self._whole_layers else []
        return with_hand_made(
            problem.replace(colocation=(*problem.colocation, *together)),
            captured,
            # With a host, pins hold for units, and may name the host.
            pins=placement.pins if self._host is None else {},
            cut_after=placement.cut_after,
        )


def _ends(captured: CapturedGraph) -> list[ColocationGroup]:
    """Return the operators before the first layer and after the last, as two groups."""
    names = [node.name for node in captured.operators]
    inside = [at for at, call in enumerate(layer_calls(captured).values()) if call is not None]
    if not inside:
        return []
    ends = {"before the layers": names[: inside[0]], "after the layers": names[inside[-1] + 1 :]}
    return [ColocationGroup(tuple(own), side) for side, own in ends.items() if own]


def cache_growth(
    step: ServeStep, weights: Iterable[str], stored_as: str | None = None
) -> dict[str, int]:
    """Return the bytes per position of the caches among some weights, by key."""
    grows, known = _cache_bytes(step, stored_as), set(weights)
    return {
        name: grows[name] // tensor.shape[2] if name in grows else 0
        for name, tensor in step.named_buffers()
        if name.startswith(f"{CACHES}.") and name in known
    }


def _cache_bytes(step: ServeStep, stored_as: str | None) -> dict[str, int]:
    """Return the bytes of keys and values by buffer; PartitionError if blocks do not fit heads."""
    found: dict[str, int] = {}
    for name, tensor in step.named_buffers():
        if name.startswith(f"{CACHES}.") and name.rpartition(".")[2] in ("keys", "values"):
            stored = None if stored_as is None else cache_type(stored_as)
            found[name] = tensor.nbytes if stored is None else stored.size_bytes(tensor.numel())
            if stored is not None and tensor.shape[-1] % stored.entries:
                raise PartitionError(
                    f"a cache of type {stored_as} has blocks of {stored.entries} entries, and a "
                    f"head {tensor.shape[-1]}; write f16 or fp8"
                )
    return found


def _cache_limits(step: ServeStep) -> dict[str, int]:
    """Return the most positions of the caches with a sliding window, by key."""
    from fx_bridge.serving.caches import KeyValueCache

    return {
        f"{CACHES}.{path}.{name}": cache.limit
        for path, cache in step.caches.named_modules()
        if isinstance(cache, KeyValueCache) and cache.limit is not None
        for name, _ in cache.named_buffers()
    }
