"""What the options say of a problem, and the problems that they make of models and files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.options import OPTIMIZERS, LimitOptions, ProblemOptions
from solver import (
    MEMORY_MODELS,
    OBJECTIVES,
    PCIE,
    Interconnect,
    PartitionError,
    PartitionProblem,
    SolveLimits,
    check_solver,
    pipeline_settings,
)
from solver.checks import check_choice
from solver.training import SCHEDULES

if TYPE_CHECKING:
    from experiments.devices import DeviceSet
    from experiments.models import ModelSpec
    from experiments.profiling import Profile
    from fx_bridge.capture import CapturedGraph
    from fx_bridge.hand_made import Pin


@dataclass(frozen=True, slots=True)
class ProblemRequest:
    """What the options say of a problem, read; None and empty where they leave it open.

    Attributes
    ----------
    devices : DeviceSet or None
    interconnect : Interconnect or None
        The option ``--link``.
    objective : tuple of str or None
    memory_model, schedule, optimizer : str or None
    microbatches, chunks_per_device, max_devices : int or None
    keep_whole, cut_after : tuple of str
    pins : mapping of str to int, str or tuple of str
    profile : Profile or None
    communication_scale : float or None
    with_host : bool
    """

    devices: DeviceSet | None = None
    interconnect: Interconnect | None = None
    objective: tuple[str, ...] | None = None
    memory_model: str | None = None
    chunks_per_device: int | None = None
    max_devices: int | None = None
    keep_whole: tuple[str, ...] = ()
    pins: Mapping[str, Pin] = field(default_factory=dict)
    cut_after: tuple[str, ...] = ()
    schedule: str | None = None
    microbatches: int | None = None
    optimizer: str | None = None
    profile: Profile | None = None
    communication_scale: float | None = None
    with_host: bool = True


def read_request(options: ProblemOptions) -> ProblemRequest:
    """Read the options of a problem, before any model is built.

    Raises
    ------
    PartitionError
        If one of them says nothing that can be understood.
    """
    from experiments.devices import parse_link

    check_choices(options)
    request = ProblemRequest(
        devices=_read_devices(options.devices),
        interconnect=None
        if options.link is None
        else Interconnect(default=parse_link(options.link)),
        objective=read_objective(options.objective),
        memory_model=options.memory_model,
        chunks_per_device=options.chunks,
        max_devices=options.max_devices,
        keep_whole=tuple(options.keep_whole or ()),
        pins=read_pins(options.pin),
        cut_after=tuple(options.cut_after or ()),
        schedule=options.schedule,
        microbatches=options.microbatches,
        optimizer=options.optimizer,
        communication_scale=options.communication_scale,
        with_host=not options.no_host,
    )
    if options.profile is None:
        return request

    from experiments.profiling import Profile

    return dataclasses.replace(request, profile=Profile.load(options.profile))


def check_choices(options: ProblemOptions) -> None:
    """Refuse names that are none of those that an option takes."""
    for value, allowed, name in (
        (options.memory_model, MEMORY_MODELS, "--memory-model"),
        (options.schedule, SCHEDULES, "--schedule"),
        (options.optimizer, OPTIMIZERS, "--optimizer"),
    ):
        if value is not None:
            check_choice(value, allowed, name)


def read_objective(text: str | None) -> tuple[str, ...] | None:
    """Return the objectives that `text` names with commas between them, or None."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in OBJECTIVES:
            raise PartitionError(
                f"--objective: {name!r} is unknown; write one or more of {', '.join(OBJECTIVES)}"
            )
        if names.count(name) > 1:
            raise PartitionError(f"--objective {text!r} names {name} twice; name each once")
    return names


def read_limits(options: LimitOptions) -> SolveLimits:
    """Return the limits of a search; from a command it always ends, so that JSON can say when."""
    if not options.time_limit > 0 or math.isinf(options.time_limit):
        raise PartitionError(
            f"--time-limit is {options.time_limit:g}; write a positive number of seconds, such as "
            "60"
        )
    try:
        return SolveLimits(options.time_limit, options.workers, options.seed, options.deterministic)
    except PartitionError as error:
        # The other options are called as what they set.
        raise PartitionError(f"--{error}") from None


def read_solvers(entries: Sequence[str] | None, default: Sequence[str]) -> tuple[str, ...]:
    """Return the solvers that the options --solver name, each once."""
    given = [name.strip() for entry in entries or default for name in entry.split(",")]
    for name in given:
        check_solver(name)
    return tuple(dict.fromkeys(given))


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


def _read_devices(entries: Sequence[str] | None) -> DeviceSet | None:
    from experiments.devices import parse_devices

    if not entries:
        return None
    if len(entries) > 1:
        raise PartitionError(
            f"--devices is given {len(entries)} times; a plan is for one set: write its devices "
            "with commas between them, such as 80GB,24GB"
        )
    return parse_devices(entries[0])


def read_problem(
    model: str, request: ProblemRequest, step: Callable[[str], None]
) -> tuple[CapturedGraph | None, PartitionProblem]:
    """Return the problem of a model or of a file; `step` hears what is being done.

    Parameters
    ----------
    model : str
        As a person names it; see :func:`experiments.models.resolve_model`.
    request : ProblemRequest
    step : callable

    Returns
    -------
    CapturedGraph or None
        The model; None where a file holds the problem alone.
    PartitionProblem

    Raises
    ------
    PartitionError
        If an option makes no sense for this model or file, or the problem is none.
    """
    from experiments.models import resolve_model

    source = resolve_model(model)
    if isinstance(source, Path):
        return None, read_saved_problem(source, request)
    captured, problem = _read_model(source, request, step)
    return captured, _with_stages(problem, captured, request)


def check_model_request(model: str, request: ProblemRequest) -> None:
    """Refuse what the options say if it makes no sense for a model that is built."""
    if request.communication_scale is not None or not request.with_host:
        raise PartitionError(
            f"{model} is a model; --communication-scale and --no-host are for published "
            "workloads, so leave them out"
        )
    counted = request.memory_model or "inference"
    if request.optimizer is not None and counted != "training":
        raise PartitionError(
            f"--optimizer counts in training, and the memory model is {counted}; write "
            "--memory-model training"
        )


def read_saved_problem(path: Path, request: ProblemRequest) -> PartitionProblem:
    """Load a problem or a published workload, changed where the options say so."""
    from experiments.workloads import load_instance

    for option, given, why in (
        ("--keep-whole", request.keep_whole, "knows no modules"),
        ("--profile", request.profile, "has its times"),
        ("--optimizer", request.optimizer, "counts its optimizer"),
    ):
        if given:
            raise PartitionError(f"{path} is a saved problem, which {why}; {option} needs a model")
    problem = load_instance(
        path, communication_scale=request.communication_scale, with_host=request.with_host
    )
    settings = _settings(request)
    replaced = request.devices is not None and "interconnect" not in settings
    if replaced and problem.interconnect.links:
        raise PartitionError(
            f"{path} has links between its own devices; with other devices give --link too"
        )
    return _with_stages(problem.replace(**settings), None, request)


def _read_model(
    spec: ModelSpec, request: ProblemRequest, step: Callable[[str], None]
) -> tuple[CapturedGraph, PartitionProblem]:
    """Build and capture the model of `spec`; return it with its problem."""
    from experiments.devices import EXAMPLE

    if request.devices is None:
        raise PartitionError(f"--devices is missing; {EXAMPLE}")
    check_model_request(spec.name, request)
    counted = request.memory_model or "inference"
    costs: dict[str, Any] = {}
    if request.optimizer is not None:
        costs["optimizer"] = request.optimizer

    from experiments.comparison import operator_graph
    from experiments.models import build_model, others_code
    from fx_bridge.capture import capture

    step(f"{spec.name}: building")
    loaded = build_model(spec)
    step(f"{spec.name}: capturing")
    with others_code(f"model {spec.name!r}"):
        captured = capture(loaded.module, loaded.args, loaded.kwargs)
    step(f"{spec.name}: operator graph")
    interconnect = PCIE
    if request.profile is not None:
        request.profile.check(captured)
        costs.update(request.profile.costs(counted == "training"))
        interconnect = request.profile.interconnect
    graph = operator_graph(
        captured, [request.devices], counted, keep_whole=request.keep_whole, costs=costs
    )
    settings = {"interconnect": interconnect, **_settings(request)}
    return captured, PartitionProblem.from_digraph(graph, **settings)


def _settings(request: ProblemRequest) -> dict[str, Any]:
    """Return what the options say of any problem, and nothing that they leave open."""
    given: dict[str, Any] = {
        "interconnect": request.interconnect,
        "objective": request.objective,
        "memory_model": request.memory_model,
        "chunks_per_device": request.chunks_per_device,
        "max_devices": request.max_devices,
    }
    if request.devices is not None:
        given["devices"] = request.devices.devices
        given["interconnect"] = request.interconnect or request.devices.interconnect
    return {name: value for name, value in given.items() if value is not None}


def _with_stages(
    problem: PartitionProblem, captured: CapturedGraph | None, request: ProblemRequest
) -> PartitionProblem:
    """Return a problem with its schedule, cuts and pins, where the options give some."""
    settings: dict[str, Any] = {}
    if request.schedule is not None:
        settings = pipeline_settings(request.schedule, request.objective, problem.interconnect)
    if request.microbatches is not None:
        settings["microbatches"] = request.microbatches
    if settings:
        problem = problem.replace(**settings)
    if request.microbatches is not None and not _counts_microbatches(problem):
        raise PartitionError(
            "--microbatches changes nothing here; give --schedule, --objective step or "
            "--memory-model training too, or leave it out"
        )
    if not request.pins and not request.cut_after:
        return problem

    from fx_bridge.hand_made import with_hand_made

    return with_hand_made(problem, captured, pins=request.pins, cut_after=request.cut_after)


def _counts_microbatches(problem: PartitionProblem) -> bool:
    relayed = problem.interconnect.charging == "relayed"
    return relayed or problem.is_training or "step" in problem.objective
