"""The problems of one model: built and captured once, whatever is asked of it."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from experiments.comparison.records import ModelRecord
from experiments.problems.devices import DeviceSet, parse_link
from experiments.problems.recompute_request import RecomputeRequest
from experiments.problems.request import (
    ProblemRequest,
    change_problem,
    problem_of_graph,
    requested_device_sets,
    requested_graph,
)
from experiments.sweep.cases import CaseRequest, content_key, spelled_out
from experiments.sweep.settings import OWN
from experiments.sweep.sources import ModelSource
from experiments.zoo.building import LoadedModel, ModelSpec, build_model, capture_model
from experiments.zoo.models import resolve_built
from solver import (
    Device,
    Interconnect,
    PartitionProblem,
    problem_to_digraph,
)

_EQUAL: Final = 4
_SLACK_PERMILLE: Final = 1150
"""Of devices derived for a problem from a file, which says nothing of either."""

if TYPE_CHECKING:
    import networkx as nx

    from fx_bridge.capture.graph import CapturedGraph


class PreparedModel:
    """A model of a sweep, built and captured when that is first needed.

    Parameters
    ----------
    source : ModelSource
        An import string runs code; it comes from the command line alone.
    """

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self._graphs: dict[str, nx.DiGraph] = {}
        self._derived: dict[tuple[object, ...], dict[str, DeviceSet]] = {}
        self._seconds: dict[str, float] = {}

    @cached_property
    def _spec(self) -> ModelSpec:
        return resolve_built(self.source.name)

    @cached_property
    def loaded(self) -> LoadedModel:
        """The module with its example inputs."""
        started_s = time.perf_counter()
        loaded = build_model(self._spec)
        self._seconds["build_s"] = time.perf_counter() - started_s
        return loaded

    @cached_property
    def captured(self) -> CapturedGraph:
        """The module's graph."""
        loaded = self.loaded
        started_s = time.perf_counter()
        captured = capture_model(loaded)
        self._seconds["capture_s"] = time.perf_counter() - started_s
        return captured

    def problem(self, request: CaseRequest) -> PartitionProblem:
        """Return the problem of a case.

        Raises
        ------
        PartitionError
            If the model cannot be built or captured, or the devices do not suit it.
        """
        if self.source.own is None:
            return self.problem_on(self._devices(request), request)
        # Its own devices stay where no others are given.
        others = None if request.devices.written == OWN else self._devices(request)
        return change_problem(self.source.own, replace(_asked(request), devices=others))

    def problem_on(self, devices: DeviceSet, request: CaseRequest) -> PartitionProblem:
        """Return the problem of a model on devices that are known."""
        graph = self._graph(devices, request)
        return problem_of_graph(graph, self.captured, devices, _asked(request))

    def record(self, first: PartitionProblem) -> ModelRecord:
        """Return what was measured of the model; `first` is the problem of its first case."""
        if self.source.own is not None:
            words = {"file": "saved problem", "generator": "generated graph"}
            description = words[self.source.kind]
            return ModelRecord.of_problem(self.source.name, first, description=description)
        return ModelRecord.of_problem(
            self.source.name,
            first,
            description=self._spec.description,
            has_weights=self.loaded.has_weights,
            captured_by=self.captured.how,
            **self._seconds,
        )

    def _graph(self, devices: DeviceSet, request: CaseRequest) -> nx.DiGraph:
        """Return the operator graph, timed for the classes of these devices and no others.

        So a problem does not depend on which other devices a sweep has.
        """
        training = "training" if request.key.memory_model == "training" else "inference"
        recompute = RecomputeRequest(request.recompute)
        key = content_key(spelled_out((training, request.recompute, devices.spec_of)))
        if key not in self._graphs:
            captured = self.captured
            started_s = time.perf_counter()
            self._graphs[key] = requested_graph(
                captured, [devices], ProblemRequest(memory_model=training, recompute=recompute)
            )
            self._seconds.setdefault("graph_s", time.perf_counter() - started_s)
        return self._graphs[key]

    def _devices(self, request: CaseRequest) -> DeviceSet:
        given = request.devices.read()
        if given is not None:
            return given
        asked = _asked(request)
        # The capacities are those for which a plan exists, whatever it is to be good at.
        key = (request.link, request.key.memory_model, request.recompute, request.pipeline)
        if key not in self._derived:
            own = self.source.own
            if own is not None:
                graph, count, slack_permille = problem_to_digraph(own), _EQUAL, _SLACK_PERMILLE
            else:
                graph = self._graph(DeviceSet((Device("any"),)), request)
                count, slack_permille = self._spec.equal_devices, self._spec.slack_permille
            self._derived[key] = requested_device_sets(
                graph, asked, equal_devices=count, slack_permille=slack_permille
            )
        return self._derived[key][str(request.devices.written)]


def _asked(request: CaseRequest) -> ProblemRequest:
    """Return what is asked of a problem, but for its devices."""
    return ProblemRequest(
        interconnect=None if request.link is None else Interconnect(parse_link(request.link)),
        objective=request.key.objective,
        memory_model=request.key.memory_model,
        recompute=RecomputeRequest(request.recompute),
        pipeline=request.pipeline,
    )
