"""Problems of one model, which is built and captured once."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from experiments.comparison.built_models import BuiltModel
from experiments.comparison.records import ModelRecord
from experiments.problems.devices import DeviceSet, parse_link
from experiments.problems.hosts import check_options
from experiments.problems.recompute_request import RecomputeRequest
from experiments.problems.request import (
    ProblemRequest,
    change_problem,
    problem_of_graph,
    requested_device_sets,
)
from experiments.sweep.cases import CaseRequest, content_key, spelled_out
from experiments.sweep.settings import OWN
from experiments.sweep.sources import ModelSource
from experiments.zoo.models import resolve_built
from solver import Device, Interconnect, PartitionProblem, problem_to_digraph

if TYPE_CHECKING:
    import networkx as nx


T = TypeVar("T")

_EQUAL: Final = 4
_SLACK_PERMILLE: Final = 1150
"""Number and memory slack of devices derived for a problem from a file."""


class PreparedModel:
    """A model of a sweep and its problems.

    An import string as `source` runs code; it comes from the command line alone.
    """

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self._graphs: dict[str, nx.DiGraph] = {}
        self._derived: dict[tuple[object, ...], dict[str, DeviceSet]] = {}

    @cached_property
    def built(self) -> BuiltModel:
        """The module and its graph, of a model of the zoo or of code."""
        return BuiltModel(resolve_built(self.source.name))

    def problem(self, request: CaseRequest) -> PartitionProblem:
        """Return the problem of a case."""
        if self.source.own is None:
            return self.problem_on(self._devices(request), request)
        others = None if request.devices.written == OWN else self._devices(request)
        return change_problem(self.source.own, replace(_asked(request), devices=others))

    def problem_on(self, devices: DeviceSet, request: CaseRequest) -> PartitionProblem:
        """Return the problem of a model on given devices."""
        graph = self._graph(devices, request)
        return problem_of_graph(graph, self.built.captured, devices, _asked(request))

    def record(self, first: PartitionProblem) -> ModelRecord:
        """Return the measurements of the model; `first` is the problem of its first case."""
        if self.source.own is None:
            return self.built.record(first)
        words = {"file": "saved problem", "generator": "generated graph"}
        description = words[self.source.kind]
        return ModelRecord.of_problem(self.source.name, first, description=description)

    def _graph(self, devices: DeviceSet, request: CaseRequest) -> nx.DiGraph:
        """Return the operator graph, timed for the classes of these devices alone.

        A problem thus does not depend on the other devices of a sweep.
        """
        training = "training" if request.key.memory_model == "training" else "inference"
        recompute = RecomputeRequest(request.recompute)
        made_for = training, request.recompute, request.host, devices.spec_of
        key = content_key(spelled_out(made_for))
        if key not in self._graphs:
            asked = ProblemRequest(memory_model=training, recompute=recompute, host=request.host)
            self._graphs[key] = self.built.graph([devices], asked)
        return self._graphs[key]

    def _devices(self, request: CaseRequest) -> DeviceSet:
        given = request.devices.read()
        if given is not None:
            return given
        asked = _asked(request)
        # The capacities are those for which a plan exists, under any objective.
        key = (request.link, request.key.memory_model, request.recompute, request.pipeline)
        if key not in self._derived:
            own = self.source.own
            if own is not None:
                graph, count, slack_permille = problem_to_digraph(own), _EQUAL, _SLACK_PERMILLE
            else:
                graph = self._graph(DeviceSet((Device("any"),)), request)
                spec = self.built.spec
                count, slack_permille = spec.equal_devices, spec.slack_permille
            self._derived[key] = requested_device_sets(
                graph, asked, equal_devices=count, slack_permille=slack_permille
            )
        return self._derived[key][str(request.devices.written)]


def _asked(request: CaseRequest) -> ProblemRequest:
    """Return the request for a problem, without its devices."""
    if request.host is not None:
        check_options(request.key.objective, request.key.memory_model, request.pipeline)
    return ProblemRequest(
        interconnect=None if request.link is None else Interconnect(parse_link(request.link)),
        objective=request.key.objective,
        memory_model=request.key.memory_model,
        recompute=RecomputeRequest(request.recompute),
        pipeline=request.pipeline,
        host=request.host,
    )
