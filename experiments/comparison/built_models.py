"""Models built and captured on first use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from experiments.comparison.records import ModelRecord
from experiments.problems.devices import DeviceSet
from experiments.problems.request import ProblemRequest, requested_graph
from experiments.zoo.building import (
    DEFAULT_CAPTURE,
    CaptureRequest,
    LoadedModel,
    ModelSpec,
    build_model,
    capture_model,
    others_code,
)
from solver import PartitionProblem

if TYPE_CHECKING:
    import networkx as nx

    from fx_bridge.capture.graph import CapturedGraph

T = TypeVar("T")


class BuiltModel:
    """A model built and captured on first use, with the seconds of each step.

    `step` is called with the name of each step.
    """

    def __init__(
        self,
        spec: ModelSpec,
        capture: CaptureRequest = DEFAULT_CAPTURE,
        step: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.spec = spec
        self._capture = capture
        self._step = step
        self._seconds: dict[str, float] = {}

    @cached_property
    def loaded(self) -> LoadedModel:
        """The module with its example inputs."""
        return self._timed("build", "building", lambda: build_model(self.spec))

    @cached_property
    def captured(self) -> CapturedGraph:
        """The module's graph."""
        loaded = self.loaded
        return self._timed("capture", "capturing", lambda: capture_model(loaded, self._capture))

    def graph(self, device_sets: Sequence[DeviceSet], request: ProblemRequest) -> nx.DiGraph:
        """Return the operator graph, timed for the classes of some devices."""
        captured = self.captured
        return self._timed(
            "graph", "operator graph", lambda: requested_graph(captured, device_sets, request)
        )

    def record(self, first: PartitionProblem) -> ModelRecord:
        """Return the measurements of the model; `first` is the problem of its first case."""
        return ModelRecord.of_problem(
            self.spec.name,
            first,
            description=self.spec.description,
            has_weights=self.loaded.has_weights,
            captured_by=self.captured.how,
            **self._seconds,
        )

    def _timed(self, name: str, doing: str, make: Callable[[], T]) -> T:
        self._step(f"{self.spec.name}: {doing}")
        started_s = time.perf_counter()
        with others_code(f"model {self.spec.name!r}"):
            made = make()
        self._seconds.setdefault(f"{name}_s", time.perf_counter() - started_s)
        return made
