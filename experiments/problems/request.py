"""Options of a problem, applied to models and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.problems import hosts
from experiments.problems.devices import DeviceSet
from experiments.problems.recompute_request import RecomputeRequest
from experiments.zoo.building import DEFAULT_CAPTURE, CaptureRequest
from solver import (
    DEFAULT_DEVICE_CLASS,
    OBJECTIVES,
    PCIE,
    Interconnect,
    Operator,
    PartitionError,
    PartitionProblem,
    Pipeline,
)
from solver.io.digraph import problem_from_digraph
from solver.model.device_text import EXAMPLE
from solver.model.problem_checks import check_timed
from solver.model.text import shortened

if TYPE_CHECKING:
    import networkx as nx

    from experiments.problems.profile import Profile
    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.options import Placement, Training


@dataclass(frozen=True, slots=True)
class ProblemRequest:
    """Parsed options of a problem; None and empty where not given.

    Without `devices` they are those of a saved problem, or derived from the model. `interconnect`
    is the option ``--link``; objectives are in lexicographic order. Where `training` and
    `placement` are None, a saved problem needs no torch; an empty `recompute` keeps that of a saved
    problem. `engine` is one whose format must be able to express the plan.

    `attention` is the kernel on all devices, and `launch`, as
    :meth:`fx_bridge.costs.device_specs.DeviceSpec.launched` takes it, that of all devices but CPUs,
    in place of those of their classes. A `profile` is in place of the roofline.

    Published workloads alone have the factor of communication times and the host among their
    devices, and those of Piper replicated stages and the memory of each device. `host` is read by
    :func:`experiments.problems.hosts.parse_host`.
    """

    devices: DeviceSet | None = None
    interconnect: Interconnect | None = None
    objective: tuple[str, ...] | None = None
    memory_model: str | None = None
    training: Training | None = None
    recompute: RecomputeRequest = field(default_factory=RecomputeRequest)
    pipeline: Pipeline = field(default_factory=Pipeline)
    placement: Placement | None = None
    engine: str | None = None
    attention: str | None = None
    launch: str | int | None = None
    profile: Profile | None = None
    communication_scale: float | None = None
    with_host: bool = True
    with_replicas: bool = True
    device_memory_bytes: int | None = None
    capture: CaptureRequest = DEFAULT_CAPTURE
    host: str | None = None

    def placement_of(self, captured: CapturedGraph | None) -> Placement | None:
        """Return the placement of a model, restricted to plans that the engine can express."""
        if self.engine is None or captured is None:
            return self.placement
        from fx_bridge.interop.engines import placement_for

        return placement_for(self.engine, captured, self.placement)


def parse_objective(text: str, where: str) -> tuple[str, ...]:
    """Return the comma-separated objectives of `text`; a message begins with `where`."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in OBJECTIVES:
            raise PartitionError(
                f"{where}: {name!r} is unknown; write one or more of {', '.join(OBJECTIVES)}"
            )
        if names.count(name) > 1:
            raise PartitionError(f"{where} {text!r} names {name} twice; name each once")
    return names


def read_problem(
    model: str, request: ProblemRequest, step: Callable[[str], None]
) -> tuple[CapturedGraph | None, PartitionProblem]:
    """Return the problem of a model or file, and the captured model, if any.

    `model` is a name for :func:`experiments.zoo.models.resolve_model`; `step` is called with the
    name of each step. Refuses options that do not apply to this model or file.
    """
    from experiments.zoo.building import build_model, capture_model
    from experiments.zoo.models import is_import_string, resolve_model

    if is_import_string(model):
        # Before its code loads torch, which is slow.
        _checked_devices(model, request)
    source = resolve_model(model)
    if isinstance(source, Path):
        return None, read_saved_problem(source, request)
    devices = _checked_devices(source.name, request)
    step(f"{source.name}: building")
    loaded = build_model(source)
    step(f"{source.name}: capturing")
    captured = capture_model(loaded, request.capture)
    step(f"{source.name}: operator graph")
    graph = requested_graph(captured, [devices], request)
    return captured, problem_of_graph(graph, captured, devices, request)


def check_model_request(model: str, request: ProblemRequest) -> None:
    """Raise PartitionError for options that do not apply to a built model."""
    if request.communication_scale is not None or not request.with_host:
        raise PartitionError(
            f"{model} is a model; --communication-scale and --no-host are for published "
            "workloads, so leave them out"
        )
    if request.device_memory_bytes is not None or not request.with_replicas:
        raise PartitionError(
            f"{model} is a model; --device-memory and --no-replicas are for workloads of Piper, so "
            "leave them out, and name devices by --devices"
        )
    if request.launch is not None and request.profile is not None:
        raise PartitionError(
            "--profile has measured times, which --launch does not change; leave --launch out"
        )
    counted = request.memory_model or "inference"
    if request.training is not None and counted != "training":
        raise PartitionError(
            f"--optimizer and --tied-weights count in training, and the memory model is {counted}; "
            "write --memory-model training"
        )
    request.recompute.check(counted)
    if request.recompute.is_asked:
        from fx_bridge.options import Training

        request.recompute.training(request.training or Training())
    if request.attention is not None:
        from fx_bridge.choices import checked_kernels

        try:
            checked_kernels(request.attention)
        except PartitionError as error:
            raise PartitionError(f"--{error}") from None


def read_saved_problem(path: Path, request: ProblemRequest) -> PartitionProblem:
    """Load a problem or a published workload, and apply the options."""
    from experiments.workloads.fields import InstanceSettings
    from experiments.workloads.reader import load_instance

    for option, value, why in (
        ("--keep-whole", request.placement and request.placement.keep_whole, "knows no modules"),
        ("--for", request.engine, "knows no layers"),
        ("--constant", request.capture.constants, "has no inputs"),
        ("--check", request.capture.check, "is not captured"),
        ("--profile", request.profile, "has its times"),
        ("--optimizer or --tied-weights", request.training, "has its weights and their state"),
        ("--attention", request.attention, "has its costs"),
        ("--launch", request.launch is not None, "has its times"),
    ):
        if value or value == "":
            raise PartitionError(
                f"{shortened(path)} is a saved problem, which {why}; {option} needs a model"
            )
    if request.devices is not None and request.device_memory_bytes is not None:
        raise PartitionError(
            "--devices says how much memory devices have, and so does --device-memory; leave one "
            "out"
        )
    settings = InstanceSettings(
        request.communication_scale,
        request.with_host,
        request.with_replicas,
        request.pipeline.max_devices,
        request.device_memory_bytes,
    )
    problem = load_instance(path, settings)
    try:
        return change_problem(problem, request)
    except PartitionError as error:
        raise PartitionError(f"{shortened(path)}: {error}") from None


def change_problem(problem: PartitionProblem, request: ProblemRequest) -> PartitionProblem:
    """Apply a request to a problem.

    Refuses new devices without links for a problem with links between its own; a link on which no
    transfer depends; and an objective that counts times if no operator has one.
    """
    given = request.devices
    interconnect = None if given is None else given.interconnect
    if request.interconnect is not None:
        if all(op.transfer_ns is not None for op in problem.operators):
            raise PartitionError(
                "--link changes nothing here; every operator says how long its transfers take "
                "(`transfer_ns`), so leave it out"
            )
        # A link sets the speed of transfers, and keeps the charging.
        link = request.interconnect.default
        interconnect = replace(problem.interconnect, default=link, links={})
    if given is not None and interconnect is None and problem.interconnect.links:
        raise PartitionError(
            "it has links between its own devices; with other devices give a link too"
        )
    hosts.check_one_pass(request.host, problem)
    devices = given or DeviceSet(problem.devices, problem.interconnect)
    interconnect = hosts.linked(request.host, devices, interconnect or problem.interconnect)
    settings = _settings_of(request, interconnect)
    request.recompute.check(request.memory_model or problem.memory_model)
    if given is not None:
        settings["devices"] = given.devices
    problem = request.recompute.of_saved(problem.replace(**settings))
    check_timed(problem)
    return _with_hand_made(problem, None, request)


def _checked_devices(model: str, request: ProblemRequest) -> DeviceSet:
    """Return the requested devices; raise PartitionError for errors found before building."""
    if request.devices is None:
        raise PartitionError(f"--devices is missing; {EXAMPLE}")
    check_model_request(model, request)
    _check_settings(request, request.devices)
    return request.devices


def _check_settings(request: ProblemRequest, devices: DeviceSet) -> None:
    """Check settings before a model is built, on a problem of the pinned names alone."""
    interconnect = request.interconnect or devices.interconnect or _measured_or_pcie(request)
    pins = {} if request.placement is None else request.placement.pins
    stand_ins = tuple(Operator(name, 1) for name in pins) or (Operator("operator", 1),)
    problem = PartitionProblem(stand_ins, devices.devices, **_settings_of(request, interconnect))
    _check_microbatches(problem, request)
    if pins:
        from fx_bridge.split.pins import with_hand_made

        with_hand_made(problem, None, pins=pins)


def requested_graph(
    captured: CapturedGraph, device_sets: Sequence[DeviceSet], request: ProblemRequest
) -> nx.DiGraph:
    """Return the operator graph of a model, timed for all device classes and the default one."""
    from fx_bridge.costs.device_presets import DEVICE_SPECS
    from fx_bridge.digraph import to_digraph
    from fx_bridge.options import Costs, Training

    sets = (*device_sets, *hosts.device_sets(request.host))
    specs = {name: spec for devices in sets for name, spec in devices.spec_of.items()}
    specs.setdefault(DEFAULT_DEVICE_CLASS, DEVICE_SPECS[DEFAULT_DEVICE_CLASS])
    if request.launch is not None:
        specs = {
            name: spec if spec.device_type == "cpu" else spec.launched(request.launch)
            for name, spec in specs.items()
        }
    training = None
    if request.memory_model == "training":
        training = request.recompute.training(request.training or Training())
    placement = request.placement_of(captured)
    costs = Costs()
    if request.profile is not None:
        request.profile.check(captured)
        costs = request.profile.costs(training is not None)
    graph = to_digraph(
        captured,
        costs=replace(costs, specs=specs, attention=request.attention),
        training=training,
        keep_whole=() if placement is None else placement.keep_whole,
    )
    if request.profile is not None:
        graph.graph["times_from"] = dict.fromkeys(specs, "operators measured one by one")
    return graph


def requested_device_sets(
    graph: nx.DiGraph, request: ProblemRequest, *, equal_devices: int, slack_permille: int
) -> dict[str, DeviceSet]:
    """Return :func:`experiments.problems.instances.derived_device_sets` for a request."""
    from experiments.problems.instances import derived_device_sets

    settings = _settings_of(request, request.interconnect or _measured_or_pcie(request))
    return derived_device_sets(
        graph, equal_devices=equal_devices, slack_permille=slack_permille, **settings
    )


def problem_of_graph(
    graph: nx.DiGraph, captured: CapturedGraph, devices: DeviceSet, request: ProblemRequest
) -> PartitionProblem:
    """Return the problem of a :func:`requested_graph` on a set of devices, not those of `request`.

    `captured` is the model, for modules named in `request`.
    """
    interconnect = request.interconnect or devices.interconnect or _measured_or_pcie(request)
    interconnect = hosts.linked(request.host, devices, interconnect)
    settings = _settings_of(request, interconnect)
    problem = problem_from_digraph(graph, devices.devices, **settings)
    return _with_hand_made(problem, captured, request)


def _measured_or_pcie(request: ProblemRequest) -> Interconnect:
    return PCIE if request.profile is None else request.profile.interconnect


def _settings_of(request: ProblemRequest, interconnect: Interconnect) -> dict[str, Any]:
    """Return the given settings of a problem without its devices.

    With a schedule, the interconnect relays values.
    """
    if request.host is not None:
        request = replace(request, objective=hosts.OBJECTIVE, memory_model=hosts.MEMORY_MODEL)
    settings = request.pipeline.settings(request.objective, interconnect)
    if request.memory_model is not None:
        settings["memory_model"] = request.memory_model
    return {**settings, **request.recompute.settings()}


def _with_hand_made(
    problem: PartitionProblem, captured: CapturedGraph | None, request: ProblemRequest
) -> PartitionProblem:
    _check_microbatches(problem, request)
    asked = request.placement_of(captured)
    if asked is None:
        return problem

    from fx_bridge.split.pins import with_hand_made

    return with_hand_made(problem, captured, pins=asked.pins, cut_after=asked.cut_after)


def _check_microbatches(problem: PartitionProblem, request: ProblemRequest) -> None:
    relayed = problem.interconnect.charging == "relayed"
    counts = relayed or problem.is_training or "step" in problem.objective
    if request.pipeline.microbatches is not None and not counts:
        raise PartitionError(
            "--microbatches changes nothing here; give --schedule, --objective step or "
            "--memory-model training too, or leave it out"
        )
