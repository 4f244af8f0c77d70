"""Parsing of option values; invalid ones are refused in one line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.commands.options import CaptureOptions, LimitOptions, ProblemOptions, SearchOptions
from experiments.planners.steps import read_names, read_steps
from experiments.problems.recompute_request import RecomputeRequest
from experiments.problems.request import ProblemRequest, parse_objective
from experiments.workloads.fields import read_number
from experiments.zoo.building import CaptureRequest
from solver import Interconnect, PartitionError, Pipeline, SolveLimits, check_solver
from solver.model.problem_checks import MAX_TOTAL
from solver.model.quantities import parse_duration, parse_memory

if TYPE_CHECKING:
    from experiments.problems.devices import DeviceSet
    from fx_bridge.options import Placement, Training
    from fx_bridge.split.pins import Pin


def read_request(options: ProblemOptions) -> ProblemRequest:
    """Read the options of a problem, before any model is built."""
    from experiments.problems.devices import parse_link

    check_given(options.profile, "--profile", "gpt2.profile.json")
    scale = options.communication_scale
    if scale is not None:
        read_number(scale, "--communication-scale", MAX_TOTAL)
    request = ProblemRequest(
        devices=read_devices(options.devices),
        interconnect=None
        if options.link is None
        else Interconnect(default=parse_link(options.link, "--link")),
        objective=None
        if options.objective is None
        else parse_objective(options.objective, "--objective"),
        memory_model=options.memory_model,
        training=_read_training(options),
        recompute=RecomputeRequest.read(options.recompute or (), options.regions or ()),
        pipeline=Pipeline(
            options.schedule, options.microbatches, options.chunks, options.max_devices
        ),
        placement=_read_placement(options),
        engine=options.for_,
        attention=options.attention,
        launch=None if options.launch is None else _read_launch(options.launch),
        communication_scale=scale,
        with_host=not options.no_host,
        with_replicas=not options.no_replicas,
        device_memory_bytes=_read_device_memory(options.device_memory),
        capture=read_capture(options),
    )
    if options.profile is None:
        return request

    from experiments.problems.profile import Profile

    return replace(request, profile=Profile.load(options.profile))


def _read_launch(text: str) -> str | int:
    from fx_bridge.costs.device_specs import LAUNCHES

    if text in LAUNCHES:
        return text
    example = f"write {' or '.join(LAUNCHES)}, or a time such as 34us"
    return parse_duration(text, f"--launch {text!r}", example)


def read_capture(options: CaptureOptions) -> CaptureRequest:
    """Return the capture settings of a model."""
    return CaptureRequest(tuple(options.constant or ()), options.check)


def _read_device_memory(text: str | None) -> int | None:
    if text is None:
        return None
    example = "write for example 8GiB"
    size_bytes = parse_memory(text, f"--device-memory {text!r}", example)
    if size_bytes is None:
        raise PartitionError(f"--device-memory is {text}; {example}")
    return size_bytes


def _read_training(options: ProblemOptions) -> Training | None:
    if options.optimizer is None and options.tied_weights is None:
        return None
    from fx_bridge.options import Training

    training = Training() if options.optimizer is None else Training(options.optimizer)
    if options.tied_weights is None:
        return training
    return replace(training, tied_weights=options.tied_weights)


def _read_placement(options: ProblemOptions) -> Placement | None:
    for option, names in (("--cut-after", options.cut_after), ("--keep-whole", options.keep_whole)):
        if "" in (names or ()):
            raise PartitionError(f"{option} is empty; write a module, such as h.0")
    pins = read_pins(options.pin)
    if not (pins or options.cut_after or options.keep_whole):
        return None
    from fx_bridge.options import Placement

    return Placement(pins, options.cut_after or (), options.keep_whole or ())


def read_limits(options: LimitOptions) -> SolveLimits:
    """Return the limits of a search, whose solver is checked; JSON can hold the time limit."""
    if isinstance(options, SearchOptions):
        check_solver(options.solver)
    if not options.time_limit > 0 or math.isinf(options.time_limit):
        raise PartitionError(
            f"--time-limit is {options.time_limit:g}; write a positive number of seconds, such as "
            "60"
        )
    try:
        return SolveLimits(options.time_limit, options.workers, options.seed, options.deterministic)
    except PartitionError as error:
        # The messages name each setting, whose option has the same name.
        raise PartitionError(f"--{error}") from None


def check_given(value: str | None, name: str, example: str) -> None:
    """Refuse an empty path, which elsewhere means the current folder."""
    if value == "":
        raise PartitionError(f"{name} is empty; write a name such as {example}")


def read_solvers(entries: Sequence[str] | None, default: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct solvers of the options --solver."""
    return read_names(entries or default, check_solver)


def read_planners(entries: Sequence[str] | None) -> tuple[str, ...]:
    """Return the distinct planners of the options --planner."""
    from experiments.planners.registry import check_planner

    return read_names(entries or (), check_planner)


def read_without(entries: Sequence[str] | None) -> tuple[str, ...]:
    """Return the distinct steps of the options --without."""
    try:
        return read_steps(entries or ())
    except PartitionError as error:
        raise PartitionError(f"--without: {error}") from None


def read_pins(entries: Sequence[str] | None) -> dict[str, Pin]:
    """Return the pins of the options --pin: stages or devices by module or operator."""
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
        pins[name] = _stage(name, where) if where.isdecimal() else tuple(where.split(","))
    return pins


def _stage(name: str, digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # thousands of digits
        raise PartitionError(
            f"--pin {name!r}: a stage of {len(digits):,} digits is none; write a number such as 3"
        ) from None


def read_devices(entries: Sequence[str] | None) -> DeviceSet | None:
    """Read the option --devices; PartitionError if it is not exactly one valid set."""
    from experiments.problems.devices import parse_devices

    if not entries:
        return None
    if len(entries) > 1:
        raise PartitionError(
            f"--devices is given {len(entries)} times; a plan is for one set: write its devices "
            "with commas between them, such as 80GB,24GB"
        )
    return parse_devices(entries[0], "--devices")
