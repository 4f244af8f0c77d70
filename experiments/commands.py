"""What the commands share: reading options, making problems, solving and printing plans."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from experiments.exit_codes import EXIT_NO_PLAN, EXIT_TIME_OUT
from solver import (
    MEMORY_MODELS,
    OBJECTIVES,
    PCIE,
    Diagnosis,
    Interconnect,
    PartitionError,
    PartitionProblem,
    SolveLimits,
    SolveResult,
    SolveStatus,
    diagnose,
    pipeline_settings,
    save_plan,
    summary,
)
from solver.quantities import printable
from solver.serialization import check_folder_writable

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.devices import DeviceSet
    from experiments.models import ModelSpec
    from experiments.progress import ProgressLine
    from fx_bridge.capture import CapturedGraph
    from fx_bridge.hand_made import Pin

_PIPE_WIDTH: Final = 160


def make_console() -> Console:
    """Return the console of standard output."""
    from rich.console import Console

    # Not a terminal means a pipe or a file: there a table must not be squeezed into 80 columns.
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _PIPE_WIDTH
    return Console(width=width, highlight=False)


def read_objective(text: str | None) -> tuple[str, ...] | None:
    """Return the objectives that `text` names with commas between them, or None."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in OBJECTIVES:
            raise PartitionError(
                f"objective {name!r} is unknown; write one or more of {', '.join(OBJECTIVES)}"
            )
        if names.count(name) > 1:
            raise PartitionError(f"objective {text!r} names {name} twice; name each once")
    return names


def read_limits(
    time_limit_s: float, workers: int | None, seed: int, deterministic: bool
) -> SolveLimits:
    """Return the limits of a search; from a command it always ends, so that JSON can say when."""
    if math.isinf(time_limit_s):
        raise PartitionError(
            f"--time-limit is {time_limit_s}; write a positive number of seconds, such as 60"
        )
    return SolveLimits(time_limit_s, workers, seed, deterministic)


def read_memory_model(text: str | None) -> str | None:
    """Return a memory model that exists, or None."""
    if text is not None and text not in MEMORY_MODELS:
        raise PartitionError(
            f"memory model {text!r} is unknown; write one of {', '.join(MEMORY_MODELS)}"
        )
    return text


def read_pins(entries: Sequence[str] | None) -> dict[str, Pin]:
    """Return what the options --pin say: names to stages or to devices."""
    pins: dict[str, Pin] = {}
    for entry in entries or ():
        name, _, where = entry.rpartition("=")
        if not name or not where:
            raise PartitionError(
                f"--pin {entry!r}: write a module or operator, '=', and a device or stage, "
                "such as lm_head=gpu3 or lm_head=3"
            )
        if name in pins:
            raise PartitionError(f"--pin {name!r} is given twice; give it once")
        pins[name] = int(where) if where.isdecimal() else tuple(where.split(","))
    return pins


def check_writable(path: str | None) -> None:
    """Refuse a file that cannot be written before the work, not after it."""
    if path is None:
        return
    if not path:
        raise PartitionError("--out is empty; write the name of a file, such as plan.json")
    if "\0" in path:
        raise PartitionError(f"cannot write {path}: a null character; write another path")
    target = Path(path)
    try:
        if target.is_dir():
            raise PartitionError(f"{path} is a folder; write the name of a file")
        if not target.parent.is_dir():
            raise PartitionError(
                f"there is no folder {target.parent}; create it or write another path"
            )
        if target.exists() and not target.is_file():
            return  # such as /dev/null, which is written to as it is
    except OSError as error:
        raise PartitionError(f"cannot write {path}: {error.strerror}; write another path") from None
    check_folder_writable(Path(os.path.realpath(target)).parent)


def _settings(
    devices: DeviceSet | None,
    link: str | None,
    objective: str | None,
    memory_model: str | None,
) -> dict[str, Any]:
    """Return what the options say of a problem, and nothing that they leave open."""
    from experiments.devices import parse_link

    settings: dict[str, Any] = {}
    if devices is not None:
        settings["devices"] = devices.devices
        if devices.interconnect is not None:
            settings["interconnect"] = devices.interconnect
    if link is not None:
        settings["interconnect"] = Interconnect(default=parse_link(link))
    if (names := read_objective(objective)) is not None:
        settings["objective"] = names
    if (chosen := read_memory_model(memory_model)) is not None:
        settings["memory_model"] = chosen
    return settings


def read_saved_problem(
    path: Path,
    devices: str | None,
    link: str | None,
    objective: str | None,
    memory_model: str | None,
    communication_scale: float | None = None,
    with_host: bool = True,
) -> PartitionProblem:
    """Load a problem or a published workload, changed where the options say so."""
    from experiments.devices import parse_devices
    from experiments.workloads import load_instance

    given = None if devices is None else parse_devices(devices)
    settings = _settings(given, link, objective, memory_model)
    problem = load_instance(path, communication_scale=communication_scale, with_host=with_host)
    if given is not None and "interconnect" not in settings and problem.interconnect.links:
        raise PartitionError(
            f"{path} has links between its own devices; with other devices give --link too"
        )
    return problem.replace(**settings)


def with_stage_limits(
    problem: PartitionProblem, chunks: int | None, max_devices: int | None
) -> PartitionProblem:
    """Return a problem with the options --chunks and --max-devices, where they are given."""
    given = {"chunks_per_device": chunks, "max_devices": max_devices}
    settings = {name: value for name, value in given.items() if value is not None}
    return problem.replace(**settings) if settings else problem


def with_pipeline(
    problem: PartitionProblem, schedule: str | None, microbatches: int | None, objective: str | None
) -> PartitionProblem:
    """Return a problem with the options --schedule and --microbatches, where they are given."""
    settings: dict[str, Any] = {}
    if schedule is not None:
        settings = pipeline_settings(schedule, read_objective(objective), problem.interconnect)
    if microbatches is not None:
        settings["microbatches"] = microbatches
    return problem.replace(**settings) if settings else problem


def read_problem(
    model: str,
    devices: str | None,
    link: str | None,
    objective: str | None,
    memory_model: str | None,
    step: Callable[[str], None],
    *,
    chunks: int | None = None,
    max_devices: int | None = None,
    keep_whole: Sequence[str] = (),
    pins: Mapping[str, Pin] | None = None,
    cut_after: Sequence[str] = (),
    profile_file: str | None = None,
    schedule: str | None = None,
    microbatches: int | None = None,
    optimizer: str | None = None,
) -> PartitionProblem:
    """Return the problem of a model or a saved problem; `step` hears what is being done."""
    from experiments.models import resolve_model

    source = resolve_model(model)
    if isinstance(source, Path):
        if keep_whole:
            raise PartitionError(
                f"{model} is a saved problem, which knows no modules; --keep-whole needs a model"
            )
        if profile_file is not None:
            raise PartitionError(
                f"{model} is a saved problem, which has its times; --profile needs a model"
            )
        if optimizer is not None:
            raise PartitionError(
                f"{model} is a saved problem, which counts its optimizer; --optimizer needs a model"
            )
        problem = read_saved_problem(source, devices, link, objective, memory_model)
        problem = with_stage_limits(problem, chunks, max_devices)
        problem = with_pipeline(problem, schedule, microbatches, objective)
        return _with_hand_made(problem, None, pins, cut_after)
    captured, problem = read_model(
        source,
        devices,
        link,
        objective,
        memory_model,
        step,
        keep_whole=keep_whole,
        profile_file=profile_file,
        optimizer=optimizer,
    )
    problem = with_stage_limits(problem, chunks, max_devices)
    problem = with_pipeline(problem, schedule, microbatches, objective)
    return _with_hand_made(problem, captured, pins, cut_after)


def _with_hand_made(
    problem: PartitionProblem,
    captured: CapturedGraph | None,
    pins: Mapping[str, Pin] | None,
    cut_after: Sequence[str],
) -> PartitionProblem:
    if not pins and not cut_after:
        return problem
    from fx_bridge.hand_made import with_hand_made

    return with_hand_made(problem, captured, pins=pins, cut_after=cut_after)


def read_model(
    spec: ModelSpec,
    devices: str | None,
    link: str | None,
    objective: str | None,
    memory_model: str | None,
    step: Callable[[str], None],
    *,
    keep_whole: Sequence[str] = (),
    profile_file: str | None = None,
    optimizer: str | None = None,
) -> tuple[CapturedGraph, PartitionProblem]:
    """Build and capture the model of `spec`; return it with its problem."""
    from experiments.devices import EXAMPLE, parse_devices

    if devices is None:
        raise PartitionError(f"--devices is missing; {EXAMPLE}")
    given = parse_devices(devices)
    settings = _settings(given, link, objective, memory_model)
    profile = None
    if profile_file is not None:
        from experiments.profiling import Profile

        profile = Profile.load(profile_file)

    from experiments.comparison import operator_graph
    from experiments.models import build_model, others_code
    from fx_bridge.capture import capture
    from fx_bridge.optimizer_state import check_optimizer

    counted = settings.get("memory_model", "inference")
    costs: dict[str, Any] = {}
    if optimizer is not None:
        check_optimizer(optimizer)
        if counted != "training":
            raise PartitionError(
                f"--optimizer counts in training, and the memory model is {counted}; write "
                "--memory-model training"
            )
        costs["optimizer"] = optimizer
    step(f"{spec.name}: building")
    loaded = build_model(spec)
    step(f"{spec.name}: capturing")
    with others_code(f"model {spec.name!r}"):
        captured = capture(loaded.module, loaded.args, loaded.kwargs)
    step(f"{spec.name}: operator graph")
    interconnect = PCIE
    if profile is not None:
        profile.check(captured)
        costs.update(profile.costs(counted == "training"))
        interconnect = profile.interconnect
    graph = operator_graph(captured, [given], counted, keep_whole=keep_whole, costs=costs)
    problem = PartitionProblem.from_digraph(graph, **{"interconnect": interconnect, **settings})
    return captured, problem


def solve_all(
    problem: PartitionProblem,
    solvers: Iterable[str],
    limits: SolveLimits,
    model: str,
    progress: ProgressLine,
) -> list[SolveResult]:
    """Solve a problem by each of `solvers` in turn."""
    from experiments.comparison import with_progress
    from experiments.interrupt import run_interruptibly
    from solver import solve as run_solver

    results: list[SolveResult] = []
    for name in solvers:
        progress.step(f"{model}: {name}")
        search = functools.partial(
            run_solver, problem, with_progress(limits, progress), solver=name
        )
        results.append(run_interruptibly(search))
    return results


def finish(
    problem: PartitionProblem,
    results: list[SolveResult],
    limits: SolveLimits,
    out: str | None,
    as_json: bool,
) -> None:
    """Print answers, the last of which was asked for; save its plan; exit by its status.

    When no plan exists it says why, which may take as long as `limits` allow once more.
    """
    from experiments.interrupt import run_interruptibly

    asked = results[-1]
    explain = functools.partial(
        run_interruptibly, functools.partial(diagnose, problem, limits, result=asked)
    )
    if as_json:
        answer = result_json(problem, asked)
        if asked.status is SolveStatus.INFEASIBLE:
            answer["diagnosis"] = _diagnosis_json(explain())
        if len(results) > 1:
            answer["baseline"] = result_json(problem, results[0])
        print(json.dumps(answer, indent=1))
    else:
        print(summary(problem, results))
    if asked.objective is not None and asked.plan is not None:
        if out is not None:
            save_plan(asked.plan, out)
            print(printable(f"wrote {out}"), file=sys.stderr)
        return
    if asked.status is SolveStatus.INFEASIBLE:
        print(printable(f"no plan exists: {asked.reason}"), file=sys.stderr)
        if not as_json:
            print(printable(explain().text), file=sys.stderr)
        raise typer.Exit(EXIT_NO_PLAN)
    print(printable(f"no plan found, and none ruled out: {asked.reason}"), file=sys.stderr)
    raise typer.Exit(EXIT_TIME_OUT)


def result_json(problem: PartitionProblem, result: SolveResult) -> dict[str, Any]:
    """Return an answer as plain data."""
    plan = None if result.objective is None else result.plan
    evaluation = result.evaluation
    return {
        "status": result.status.value,
        "solver": result.solver,
        "objective": result.objective,
        "objective_bound": result.objective_bound,
        "gap": result.gap,
        "objectives": dict(zip(problem.objective, result.objective_values or (), strict=False)),
        "wall_time_s": result.wall_time_s,
        "reason": result.reason,
        "device_order": [] if plan is None else list(plan.device_order),
        "chunks": None if plan is None else dict(plan.chunks),
        "assignment": None if plan is None else dict(plan.assignment),
        "devices": [
            {
                "name": usage.device,
                "operators": len(usage.operators),
                "capacity_bytes": usage.capacity_bytes,
                "memory_bytes": usage.memory_bytes,
                "compute_ns": usage.compute_ns,
                "send_ns": usage.send_ns,
                "receive_ns": usage.receive_ns,
                "load_ns": usage.load_ns,
            }
            for usage in (() if evaluation is None else evaluation.usage)
        ],
    }


def _diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "text": diagnosis.text,
        "status": diagnosis.status.value,
        "conflict": [
            {"kind": type(limit).__name__, **asdict(limit)} for limit in diagnosis.conflict
        ],
        "is_minimal": diagnosis.is_minimal,
        "shortfalls": [
            {**asdict(shortfall), "missing_bytes": shortfall.missing_bytes}
            for shortfall in diagnosis.shortfalls
        ],
        "remedies": [
            {
                "kind": type(remedy.change).__name__,
                **asdict(remedy.change),
                "is_least": remedy.change.is_least,
                "text": remedy.change.text,
            }
            for remedy in diagnosis.remedies
        ],
        "time_ran_out": diagnosis.time_ran_out,
        "wall_time_s": diagnosis.wall_time_s,
    }
