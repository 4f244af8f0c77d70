"""A problem that is asked for, and the problems that it makes of models and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    from experiments.problems.devices import DeviceSet
    from experiments.problems.profile import Profile
    from experiments.zoo.building import ModelSpec
    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.options import Placement, Training


@dataclass(frozen=True, slots=True)
class ProblemRequest:
    """What the options say of a problem, read; None and empty where they leave it open.

    Attributes
    ----------
    devices : DeviceSet or None
        None takes those of a saved problem, or derives some from the model.
    interconnect : Interconnect or None
        The option ``--link``.
    objective : tuple of str or None
        What to minimise, one after the other.
    memory_model : str or None
        One of ``solver.MEMORY_MODELS``, ``"training"`` among them.
    training : Training or None
        None where no option of the group is given, whatever the memory model.
    recompute : RecomputeRequest
        What runs again in training; empty it leaves a saved problem its own.
    pipeline : Pipeline
        Empty where no option of the group is given.
    placement : Placement or None
        None where no option of the group is given, so that a saved problem needs no torch.
    engine : str or None
        Whose words the plan is to be said in.
    attention : str or None
        The kernel of attention on all devices, in place of those of their classes.
    profile : Profile or None
        Measured times, in place of the roofline.
    communication_scale : float or None
        Multiplies the communication times of a published workload.
    with_host : bool
        Keep the host among the devices of a published workload.
    with_replicas : bool
        Let several devices share a stage's work, in a workload of Piper.
    device_memory_bytes : int or None
        Of each of the devices of a workload of Piper.
    capture : CaptureRequest
        How a model is captured.
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
    profile: Profile | None = None
    communication_scale: float | None = None
    with_host: bool = True
    with_replicas: bool = True
    device_memory_bytes: int | None = None
    capture: CaptureRequest = DEFAULT_CAPTURE

    @property
    def keep_whole(self) -> Sequence[str]:
        """Modules that are asked to stay on one device each."""
        return () if self.placement is None else self.placement.keep_whole

    def placement_of(self, captured: CapturedGraph | None) -> Placement | None:
        """Return the placement of a model, with what keeps plans within the words of an engine."""
        if self.engine is None or captured is None:
            return self.placement
        from fx_bridge.interop.engines import placement_for

        return placement_for(self.engine, captured, self.placement)


def parse_objective(text: str, where: str) -> tuple[str, ...]:
    """Return the objectives that `text` names with commas between them.

    Raises
    ------
    PartitionError
        If one is unknown or named twice; it begins with `where`.
    """
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
    """Return the problem of a model or of a file; `step` hears what is being done.

    Parameters
    ----------
    model : str
        As a person names it; see :func:`experiments.zoo.models.resolve_model`.

    Returns
    -------
    CapturedGraph or None
        The model; None where a file holds the problem alone.

    Raises
    ------
    PartitionError
        If an option makes no sense for this model or file, or the problem is none.
    """
    from experiments.zoo.models import is_import_string, resolve_model

    if is_import_string(model):
        # Its code may load torch, which takes longer than these answers.
        _checked_devices(model, request)
    source = resolve_model(model)
    if isinstance(source, Path):
        return None, read_saved_problem(source, request)
    return _read_model(source, request, step)


def check_model_request(model: str, request: ProblemRequest) -> None:
    """Refuse what the options say if it makes no sense for a model that is built."""
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
    """Load a problem or a published workload, changed where the options say so."""
    from experiments.workloads.reader import InstanceSettings, load_instance

    for option, value, why in (
        ("--keep-whole", request.keep_whole, "knows no modules"),
        ("--for", request.engine, "knows no layers"),
        ("--constant", request.capture.constants, "has no inputs"),
        ("--check", request.capture.check, "is not captured"),
        ("--profile", request.profile, "has its times"),
        ("--optimizer or --tied-weights", request.training, "has its weights and their state"),
        ("--attention", request.attention, "has its costs"),
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
    """Return a problem changed where the request says so.

    Raises
    ------
    PartitionError
        If it has links between its own devices, and other devices come without; if no transfer is
        timed by the link that is asked for, or no operator has a time that the objective counts.
    """
    given = request.devices
    interconnect = None if given is None else given.interconnect
    if request.interconnect is not None:
        if all(op.transfer_ns is not None for op in problem.operators):
            raise PartitionError(
                "--link changes nothing here; every operator says how long its transfers take "
                "(`transfer_ns`), so leave it out"
            )
        # A link says how fast transfers are, not who pays for them.
        link = request.interconnect.default
        interconnect = replace(problem.interconnect, default=link, links={})
    if given is not None and interconnect is None and problem.interconnect.links:
        raise PartitionError(
            "it has links between its own devices; with other devices give a link too"
        )
    settings = _settings_of(request, interconnect or problem.interconnect)
    request.recompute.check(request.memory_model or problem.memory_model)
    if given is not None:
        settings["devices"] = given.devices
    problem = request.recompute.of_saved(problem.replace(**settings))
    check_timed(problem)
    return _with_hand_made(problem, None, request)


def _read_model(
    spec: ModelSpec, request: ProblemRequest, step: Callable[[str], None]
) -> tuple[CapturedGraph, PartitionProblem]:
    """Build and capture the model of `spec`; return it with its problem."""
    from experiments.zoo.building import build_model, capture_model

    devices = _checked_devices(spec.name, request)
    step(f"{spec.name}: building")
    loaded = build_model(spec)
    step(f"{spec.name}: capturing")
    captured = capture_model(loaded, request.capture)
    step(f"{spec.name}: operator graph")
    graph = requested_graph(captured, [devices], request)
    return captured, problem_of_graph(graph, captured, devices, request)


def _checked_devices(model: str, request: ProblemRequest) -> DeviceSet:
    """Return the devices of a model that is built; refuse what is wrong before it is."""
    if request.devices is None:
        raise PartitionError(f"--devices is missing; {EXAMPLE}")
    check_model_request(model, request)
    _check_settings(request, request.devices)
    return request.devices


def _check_settings(request: ProblemRequest, devices: DeviceSet) -> None:
    """Refuse, before a model is built, what is wrong with it whatever the model is.

    A problem is made of one operator for each name that is pinned.
    """
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
    """Return the operator graph of a model with the costs that are asked for.

    It is timed for every class of the devices, and for the one of devices that name none.
    """
    from fx_bridge.costs.device_specs import DEVICE_SPECS
    from fx_bridge.digraph import to_digraph
    from fx_bridge.options import Costs, Training

    specs = {name: spec for devices in device_sets for name, spec in devices.spec_of.items()}
    specs.setdefault(DEFAULT_DEVICE_CLASS, DEVICE_SPECS[DEFAULT_DEVICE_CLASS])
    training = None
    if request.memory_model == "training":
        training = request.recompute.training(request.training or Training())
    placement = request.placement_of(captured)
    costs = Costs()
    if request.profile is not None:
        request.profile.check(captured)
        costs = request.profile.costs(training is not None)
    return to_digraph(
        captured,
        costs=replace(costs, specs=specs, attention=request.attention),
        training=training,
        keep_whole=() if placement is None else placement.keep_whole,
    )


def requested_device_sets(
    graph: nx.DiGraph, request: ProblemRequest, *, equal_devices: int, slack_permille: int
) -> dict[str, DeviceSet]:
    """Return devices of a size for this operator graph, where the request names none.

    See :func:`experiments.problems.instances.derived_device_sets`.
    """
    from experiments.problems.instances import derived_device_sets

    settings = _settings_of(request, request.interconnect or _measured_or_pcie(request))
    return derived_device_sets(
        graph, equal_devices=equal_devices, slack_permille=slack_permille, **settings
    )


def problem_of_graph(
    graph: nx.DiGraph, captured: CapturedGraph, devices: DeviceSet, request: ProblemRequest
) -> PartitionProblem:
    """Return the problem of an operator graph on a set of devices.

    Parameters
    ----------
    graph : networkx.DiGraph
        Of :func:`requested_graph`.
    captured : CapturedGraph
        Whose modules `request` may name.
    request : ProblemRequest
        Its own devices do not matter.
    """
    interconnect = request.interconnect or devices.interconnect or _measured_or_pcie(request)
    settings = _settings_of(request, interconnect)
    problem = problem_from_digraph(graph, devices.devices, **settings)
    return _with_hand_made(problem, captured, request)


def _measured_or_pcie(request: ProblemRequest) -> Interconnect:
    """Return the interconnect of devices that bring none."""
    return PCIE if request.profile is None else request.profile.interconnect


def _settings_of(request: ProblemRequest, interconnect: Interconnect) -> dict[str, Any]:
    """Return what is asked of a problem besides its devices, and nothing that is left open.

    With a schedule the interconnect relays.
    """
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
