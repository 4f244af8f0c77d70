"""Worker process of sweeps, which makes problems and answers cells.

Run as ``python -m experiments.sweep.worker``; see :mod:`experiments.processes.workers`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.comparison.plain_data import plain
from experiments.comparison.planner_row import plan_row
from experiments.comparison.records import CaseKey, PlannerRow
from experiments.planners.registry import PLANNERS, is_own, own_planner
from experiments.planners.task import PlanningTask
from experiments.problems.devices import DeviceSet
from experiments.processes.workers import serve
from experiments.sweep.cases import CaseRequest
from experiments.sweep.packing import pack, unpack
from experiments.sweep.prepare import PreparedModel
from experiments.sweep.sources import ModelSource
from experiments.sweep.versions import versions
from experiments.zoo.building import describe_error
from solver import SOLVERS, Device, Operator, PartitionError, PartitionProblem, SolveLimits, solve
from solver.io.json_files import problem_digest, problem_from_json, problem_to_json

PlanRow = Callable[[CaseKey, PlanningTask, str, SolveLimits], PlannerRow]


class JobHandler:
    """Handler of jobs: plain data in, plain data out.

    `plan` has the signature of :func:`experiments.comparison.planner_row.plan_row`.
    """

    def __init__(self, plan: PlanRow = plan_row) -> None:
        self._plan = plan
        self._model: PreparedModel | None = None

    def __call__(self, job: dict[str, Any]) -> dict[str, Any]:
        """Answer a job."""
        if job["do"] == "wake":
            return {}
        if job["versions"] != versions():
            # The answers would be stored under versions that did not make them.
            return {"refused": "libraries or sources changed during the sweep; run it again"}
        return self._prepare(job) if job["do"] == "prepare" else self._answer(job)

    def _prepare(self, job: dict[str, Any]) -> dict[str, Any]:
        """Make the problems of one model; a failure becomes the reason of its case."""
        model = self._model_of(job)
        cases: list[dict[str, Any]] = []
        record = None
        for data in job["cases"]:
            request = CaseRequest.from_json(data)
            try:
                problem = model.problem(request)
                if record is None:
                    record = plain(model.record(problem))
            except Exception as error:
                # The model's own code may fail for one case only.
                cases.append({"reason": describe_error(error)})
                continue
            packed = pack(problem_to_json(problem))
            cases.append({"digest": problem_digest(problem), "problem": packed})
        return {"cases": cases, "record": record}

    def _answer(self, job: dict[str, Any]) -> dict[str, Any]:
        request = CaseRequest.from_json(job["request"])
        problem = problem_from_json(unpack(job["problem"], "the problem"))
        loaded = captured = None
        planner = job["planner"]
        spec = own_planner(planner) if is_own(planner) else PLANNERS.get(planner)
        if spec is not None and (spec.needs_model or spec.uses_model):
            model = self._model_of(job)
            if model.source.own is None:
                given = request.devices.read()
                specs = () if given is None else given.specs
                devices = DeviceSet(problem.devices, problem.interconnect, specs)
                made = problem_digest(model.problem_on(devices, request))
                if made != job["digest"]:
                    raise PartitionError(
                        f"model {model.source.name!r} makes another problem here ({made[:12]}) "
                        f"than it did ({job['digest'][:12]}); prepare it again in a new file"
                    )
                loaded, captured = model.built.loaded, model.built.captured
        without = tuple(job["without"])
        task = PlanningTask(problem, loaded, captured, without, request.host)
        forget_peak()
        row = self._plan(request.key, task, planner, SolveLimits(**job["solve"]))
        return {"row": plain(replace(row, peak_rss_bytes=peak_since_bytes()))}

    def _model_of(self, job: dict[str, Any]) -> PreparedModel:
        """Return the model of a job, cached for the next cell."""
        source = ModelSource.from_json(job["source"])
        if self._model is None or self._model.source.identity() != source.identity():
            self._model = None  # frees its weights before the next model is built
            self._model = PreparedModel(source)
        return self._model


def _load_solvers() -> None:
    """Trigger the lazy imports of solvers, so that they count for no cell's time."""
    problem = PartitionProblem((Operator("warm", 1),), (Device("up"),))
    for name in SOLVERS:
        solve(problem, SolveLimits(workers=1), solver=name)


def forget_peak() -> None:
    """Reset the peak resident memory of this process, if the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_since_bytes() -> int | None:
    """Return the peak resident memory since `forget_peak`; None if unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    _load_solvers()
    serve(JobHandler())
