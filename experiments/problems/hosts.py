"""Hosts of commands as text, with their links, and the job of a problem with a host."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from experiments.problems.devices import DeviceSet, parse_devices
from solver import Interconnect, Job, Link, PartitionError, PartitionProblem, Pipeline
from solver.model.devices import DEFAULT_DEVICE_CLASS, PCIE, STAGING_HOST
from solver.model.job import Host

OBJECTIVE: Final = ("latency",)
"""The objective with a host: the time of a forward pass in its steady state."""
MEMORY_MODEL: Final = "weights"
_ALIGNMENT_BYTES: Final = 256
"""Of a loaded weight, as placed models have it."""
_EXAMPLE: Final = "write one memory, such as 64GB@cpu"


def parse_host(text: str) -> DeviceSet:
    """Read ``MEMORY[@CLASS]`` as one device, by default of class ``cpu``.

    PartitionError if the text names no memory or several.
    """
    if text.strip().lower() in ("", "auto"):
        raise PartitionError(f"--host is {text.strip() or 'empty'}; {_EXAMPLE}")
    found = parse_devices(text, "--host", _EXAMPLE)
    if len(found.devices) > 1:
        raise PartitionError(f"--host {text!r} names several; {_EXAMPLE}")
    if found.devices[0].device_class == DEFAULT_DEVICE_CLASS:
        found = parse_devices(f"{text}@cpu")
    return found


def device_sets(text: str | None) -> tuple[DeviceSet, ...]:
    """Return the host as a set of one device, if there is one."""
    return () if text is None else (parse_host(text),)


def linked(
    text: str | None, devices: DeviceSet, interconnect: Interconnect, default: Link = PCIE.default
) -> Interconnect:
    """Return an interconnect with the links of a host, if any, that devices say, or the default."""
    if text is None:
        return interconnect
    given = {} if devices.interconnect is None else devices.interconnect.links
    links = dict(interconnect.links)
    for device in devices.devices:
        there, back = (STAGING_HOST, device.name), (device.name, STAGING_HOST)
        links[there] = given.get(there, default)
        links.setdefault(back, links[there])
    return replace(interconnect, links=links)


def check_options(
    objective: tuple[str, ...] | None,
    memory_model: str | None,
    pipeline: Pipeline,
    cut_after: object = (),
    engine: str | None = None,
) -> None:
    """Refuse options that plans with a host do not observe."""
    refused = {
        "--objective": objective not in (None, OBJECTIVE),
        "--memory-model": memory_model not in (None, MEMORY_MODEL),
        "--schedule": pipeline.schedule,
        "--microbatches": pipeline.microbatches,
        "--chunks": pipeline.chunks_per_device,
        "--max-devices": pipeline.max_devices,
        "--cut-after": cut_after,
        "--for": engine,
    }
    for option in (option for option, given in refused.items() if given):
        raise PartitionError(
            f"{option} is for plans without a host, and those with one have the least latency, by "
            "weights; leave it out, or --host"
        )


def check_one_pass(text: str | None, problem: PartitionProblem) -> None:
    """Refuse a problem with limits that plans with a host do not observe."""
    if text is None:
        return
    is_limited = problem.cuts or problem.max_devices or problem.chunks_per_device > 1
    if is_limited or problem.is_training or problem.microbatches > 1:
        raise PartitionError(
            "a host is for one forward pass, and the problem trains, or has microbatches, cuts or "
            "limits of stages; leave the host out"
        )


def host_job(problem: PartitionProblem, text: str) -> Job:
    """Return the job of one forward pass with a host.

    A unit has one operator that reads weights, and those that follow and read none; or more, where
    operators are colocated. The first unit has all before it too.
    """
    from fx_bridge.serving.halves import joined

    (host,) = parse_host(text).devices
    units: dict[str, tuple[str, ...]] = {}
    unit, has_weights = "", False
    for op in problem.operators:
        unit = op.name if not unit or (op.weights and has_weights) else unit
        has_weights |= bool(op.weights)
        units[unit] = (*units.get(unit, ()), op.name)
    sizes = {key: weight.size_bytes for key, weight in problem.weights.items()}
    return Job(
        {"forward": problem},
        "forward",
        objective="token",
        host=Host(host.memory_bytes, host.device_class),
        units=joined(units, [group.operators for group in problem.colocation]),
        padding_bytes={key: -size % _ALIGNMENT_BYTES for key, size in sizes.items()},
    )
