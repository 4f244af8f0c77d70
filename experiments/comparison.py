"""Every model, every device set, every solver: one comparison as plain frozen data.

Whatever fails is a row with its reason; a run ends early only when it is interrupted.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.devices import DeviceSet
from experiments.instances import NamedDevices, derived_device_sets, one_device_bytes
from experiments.interrupt import run_interruptibly
from experiments.models import LoadedModel, ModelSpec, build_model, first_line, others_code
from experiments.progress import ProgressLine
from experiments.records import (
    CompareSettings,
    Comparison,
    ComparisonRow,
    EquivalenceRow,
    ModelRecord,
    PlannerRow,
    best_row,
)
from solver import (
    DEFAULT_DEVICE_CLASS,
    PartitionError,
    PartitionProblem,
    SolveLimits,
    load_problem,
    problem_to_digraph,
    solve,
)
from solver.quantities import format_gap, format_seconds, format_value

if TYPE_CHECKING:
    import networkx as nx

    from fx_bridge.capture import CapturedGraph


def run_comparison(
    sources: Sequence[ModelSpec | Path],
    settings: CompareSettings,
    progress: ProgressLine | None = None,
) -> Comparison:
    """Compare all solvers on all models.

    Parameters
    ----------
    sources : sequence of ModelSpec or Path
        A path is a saved problem; it brings its own devices unless `settings` names some.
    settings : CompareSettings
    progress : ProgressLine, optional

    Returns
    -------
    Comparison
    """
    start_s = time.perf_counter()
    progress = progress or ProgressLine(quiet=True)
    records: list[ModelRecord] = []
    for source in sources:
        name = str(source) if isinstance(source, Path) else source.name
        progress.step(f"{name}: building")
        try:
            if isinstance(source, Path):
                record = _compare_problem(source, settings, progress)
            else:
                with others_code(f"model {name!r}"):
                    record = _compare_model(source, settings, progress)
        except Exception as error:
            # A model is other people's code; one that fails must not end the run.
            record = ModelRecord(model=name, reason=describe_error(error))
        if record.reason:
            progress.done(f"{name}: {record.reason}")
        records.append(record)
        # The next model must not find this one's weights still in memory.
        gc.collect()
    return Comparison(
        settings=settings,
        models=tuple(records),
        environment=_environment(),
        wall_time_s=time.perf_counter() - start_s,
        peak_rss_bytes=peak_rss_bytes(),
    )


def describe_error(error: BaseException) -> str:
    """Return an exception as one line; one of our own speaks for itself."""
    text = first_line(error)
    if isinstance(error, PartitionError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def solve_row(
    problem: PartitionProblem, solver: str, limits: SolveLimits, model: str, device_set: str
) -> ComparisonRow:
    """Solve `problem` and return the row; a solver that raises is a row with its reason."""
    start_s = time.perf_counter()
    try:
        result = run_interruptibly(lambda: solve(problem, limits, solver=solver))
        return ComparisonRow.from_result(model, device_set, solver, result)
    except Exception as error:
        return ComparisonRow(
            model=model,
            device_set=device_set,
            solver=solver,
            status="failed",
            wall_time_s=time.perf_counter() - start_s,
            reason=describe_error(error),
        )


def _compare_problem(path: Path, settings: CompareSettings, progress: ProgressLine) -> ModelRecord:
    problem = load_problem(path)
    settings = replace(
        settings,
        chunks_per_device=settings.chunks_per_device or problem.chunks_per_device,
        max_devices=settings.max_devices or problem.max_devices,
    )
    problem = problem.replace(**settings.problem_settings)
    if settings.device_sets:
        sets = settings.device_sets
    else:
        own = DeviceSet(problem.devices, problem.interconnect)
        sets = (NamedDevices("saved", own),)
    graph = problem_to_digraph(problem)
    rows = _solve_all(str(path), graph, sets, settings, progress)
    return ModelRecord(
        model=str(path),
        description=", ".join(("saved problem", *settings.stage_limits)),
        rows=rows,
        device_sets=sets,
        **_graph_figures(graph, problem),
    )


def _compare_model(
    spec: ModelSpec, settings: CompareSettings, progress: ProgressLine
) -> ModelRecord:
    from fx_bridge.capture import capture

    clock = _Clock()
    loaded = build_model(spec)
    build_s = clock.lap_s()
    progress.step(f"{spec.name}: capturing")
    captured = capture(loaded.module, loaded.args, loaded.kwargs)
    capture_s = clock.lap_s()
    progress.step(f"{spec.name}: operator graph")
    graph = operator_graph(
        captured, [named.devices for named in settings.device_sets], settings.memory_model
    )
    graph_s = clock.lap_s()
    progress.step(f"{spec.name}: device sets")
    sets = settings.device_sets or derived_device_sets(
        graph,
        equal_devices=spec.equal_devices,
        slack_permille=spec.slack_permille,
        interconnect=settings.interconnect,
        **settings.problem_settings,
    )
    problem = _problem(graph, sets[0], settings)
    figures = _graph_figures(graph, problem)
    del problem
    rows = _solve_all(spec.name, graph, sets, settings, progress)
    equivalence: tuple[EquivalenceRow, ...] = ()
    if settings.check_splits and loaded.has_weights:
        equivalence = _check_splits(loaded, captured, rows, progress)
    planners: tuple[PlannerRow, ...] = ()
    if settings.planner_quality:
        from experiments.peers import compare_planners

        planners = compare_planners(spec, loaded.module, graph, settings.limits, progress)
    return ModelRecord(
        model=spec.name,
        description=spec.description,
        has_weights=loaded.has_weights,
        captured_by=captured.how,
        build_s=build_s,
        capture_s=capture_s,
        graph_s=graph_s,
        device_sets=tuple(sets),
        rows=rows,
        equivalence=equivalence,
        planners=planners,
        **figures,
    )


def operator_graph(
    captured: CapturedGraph,
    device_sets: Sequence[DeviceSet],
    memory_model: str,
    *,
    keep_whole: Sequence[str] = (),
    costs: Mapping[str, Any] | None = None,
) -> nx.DiGraph:
    """Return the operator graph of a captured model, timed for every class of the devices.

    `costs` are arguments of :func:`fx_bridge.to_digraph` that say what was measured instead.
    """
    from fx_bridge.digraph import to_digraph
    from fx_bridge.specs import DEVICE_SPECS

    specs = {name: spec for devices in device_sets for name, spec in devices.spec_of.items()}
    specs.setdefault(DEFAULT_DEVICE_CLASS, DEVICE_SPECS[DEFAULT_DEVICE_CLASS])
    training = memory_model == "training"
    return to_digraph(
        captured, specs=specs, training=training, keep_whole=keep_whole, **(costs or {})
    )


def _problem(graph: nx.DiGraph, named: NamedDevices, settings: CompareSettings) -> PartitionProblem:
    return PartitionProblem.from_digraph(
        graph,
        named.devices.devices,
        interconnect=named.devices.interconnect or settings.interconnect,
        **settings.problem_settings,
    )


def _graph_figures(graph: nx.DiGraph, problem: PartitionProblem) -> dict[str, Any]:
    return {
        "nodes": graph.number_of_nodes(),
        "operators": len(problem.operators),
        "edges": graph.number_of_edges(),
        "weight_bytes": sum(weight.size_bytes for weight in problem.weights.values()),
        "one_device_bytes": one_device_bytes(problem),
    }


def _solve_all(
    model: str,
    graph: nx.DiGraph,
    sets: Sequence[NamedDevices],
    settings: CompareSettings,
    progress: ProgressLine,
) -> tuple[ComparisonRow, ...]:
    rows: list[ComparisonRow] = []
    for named in sets:
        problem = _problem(graph, named, settings)
        for solver in settings.solvers:
            progress.step(f"{model} on {named.name} devices: {solver}")
            limits = with_progress(settings.limits, progress)
            row = solve_row(problem, solver, limits, model, named.name)
            progress.done(_row_line(row, settings.objective[0]))
            rows.append(row)
    return tuple(rows)


def with_progress(limits: SolveLimits, progress: ProgressLine) -> SolveLimits:
    """Return `limits` reporting to `progress`."""
    return replace(limits, on_progress=progress.search)


def _row_line(row: ComparisonRow, objective: str) -> str:
    value = None if row.objective is None else row.objective[0]
    return (
        f"{row.model} on {row.device_set} devices: {row.label} {row.status}, "
        f"{objective} {format_value(objective, value)}, gap {format_gap(row.gap)}, "
        f"{format_seconds(row.wall_time_s)}"
    )


def _check_splits(
    loaded: LoadedModel,
    captured: CapturedGraph,
    rows: Sequence[ComparisonRow],
    progress: ProgressLine,
) -> tuple[EquivalenceRow, ...]:
    """Split by the best plan and by greedy's, where feasible, on every device set."""
    checked: list[EquivalenceRow] = []
    for device_set in dict.fromkeys(row.device_set for row in rows):
        here = [row for row in rows if row.device_set == device_set]
        chosen = [best_row(here), *(row for row in here if row.solver == "greedy")]
        for row in dict.fromkeys(id(row) for row in chosen if row is not None and row.feasible):
            picked = next(each for each in here if id(each) == row)
            progress.step(f"{loaded.name} on {device_set} devices: split by {picked.solver}")
            checked.append(_check_split(loaded, captured, picked))
    return tuple(checked)


def _check_split(
    loaded: LoadedModel, captured: CapturedGraph, row: ComparisonRow
) -> EquivalenceRow:
    from fx_bridge.equivalence import check_equivalence
    from fx_bridge.splitting import split_by_plan

    assert row.plan is not None
    clock = _Clock()
    try:
        split = split_by_plan(captured, row.plan)
        split_s = clock.lap_s()
        report = check_equivalence(loaded.module, split, loaded.args, loaded.kwargs)
    except Exception as error:
        return EquivalenceRow(row.device_set, row.solver, False, reason=describe_error(error))
    return EquivalenceRow(
        device_set=row.device_set,
        solver=row.solver,
        equal=report.equal,
        max_abs_error=report.max_abs_error,
        split_s=split_s,
        check_s=clock.lap_s(),
        reason="; ".join(str(difference) for difference in report.differences[:3]),
    )


class _Clock:
    """Seconds between laps."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self._last_s = now_s()

    def lap_s(self) -> float:
        last_s, self._last_s = self._last_s, self._now_s()
        return self._last_s - last_s


def _environment() -> tuple[tuple[str, str], ...]:
    entries = [("python", platform.python_version()), ("cpu count", str(os.cpu_count() or 1))]
    for name in ("fxpartition", "torch", "ortools", "networkx", "transformers", "accelerate"):
        try:
            entries.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            entries.append((name, "not installed"))
    return tuple(entries)


def peak_rss_bytes() -> int | None:
    """Return the largest resident memory of this process so far; None where it is not known."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
