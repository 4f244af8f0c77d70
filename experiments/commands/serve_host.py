"""Devices and hosts of ``serve``, and plans with resident, streamed and host-computed units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fx_bridge.presentation.modules import ModuleTree
from fx_bridge.presentation.tables import table_lines
from solver import Device, Interconnect, PartitionError, SolveStatus
from solver.model.devices import PCIE, STAGING_HOST
from solver.model.job import Host
from solver.model.quantities import format_bytes, format_ns

if TYPE_CHECKING:
    from experiments.problems.devices import DeviceSet
    from fx_bridge.options import Costs
    from fx_bridge.serving.gguf_plan import GgufPlan
    from fx_bridge.serving.hosted import HostedPlan

_MOST_NAMES: Final = 160
"""Characters of a list of half layers: two lines of most terminals."""
_MODE_WORDS: Final = {"resident": "resident", "streamed": "streamed", "host": "on the host"}


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices with their usable memory, costs of them and their links, and a host."""

    devices: Sequence[Device]
    costs: Costs
    host: Host | None


def read_machine(
    devices: DeviceSet,
    costs: Costs,
    usable: float,
    link: str | None,
    host: str | None,
    host_link: str | None,
) -> Machine:
    """Return the usable devices, the host, and the costs of both with their links."""
    from experiments.problems.devices import parse_link

    interconnect = devices.interconnect or PCIE
    if link is not None:
        interconnect = Interconnect(default=parse_link(link, "--link"))
    costs, found = replace(costs, interconnect=interconnect), None
    if host is not None:
        found, costs = read_host(host, host_link, devices, costs)
    elif host_link is not None:
        raise PartitionError("--host-link is the link from --host; add such as --host 64GB")
    own = [
        replace(each, memory_bytes=each.memory_bytes and int(each.memory_bytes * usable))
        for each in devices.devices
    ]
    return Machine(own, costs, found)


def read_host(text: str, link: str | None, devices: DeviceSet, costs: Costs) -> tuple[Host, Costs]:
    """Read ``MEMORY[@CLASS]``, and add its speed and its links to the costs of the devices.

    `link` is from the host to each device and back, where the devices' file has none. A text
    without one memory is refused, and a link where the file has one.
    """
    from experiments.problems.devices import parse_link
    from experiments.problems.hosts import linked, parse_host

    found = parse_host(text)
    (device,) = found.devices
    given = {} if devices.interconnect is None else devices.interconnect.links
    if link is not None and any(STAGING_HOST in pair for pair in given):
        raise PartitionError(
            "--host-link and [[links]] of the devices' file both say how the host is linked; "
            "leave one of them out"
        )
    default = PCIE.default if link is None else parse_link(link, "--host-link")
    interconnect = linked(text, devices, costs.interconnect, default)
    specs = {**costs.specs, **found.spec_of}
    return (
        Host(device.memory_bytes, device.device_class),
        replace(costs, interconnect=interconnect, specs=specs),
    )


def check_host_options(host: str | None, solver: str, memory_model: str | None) -> None:
    """Refuse a solver and a memory model that have no meaning with a host."""
    from solver.offload.plan import check_solver

    if host is None:
        return
    check_solver(solver)
    if memory_model == "inference":
        raise PartitionError(
            "--memory-model inference is for plans without a host; leave it out, or --host"
        )


def check_words_options(
    host: str | None, engine: str | None, words: str | None, devices: Sequence[Device]
) -> None:
    """Refuse an engine without its host, arguments without an engine, and invalid arguments.

    This makes the checks of `words` that need no model, before one is captured.
    """
    from fx_bridge.interop.stage_layers import is_host
    from fx_bridge.serving.host_words import HOST_ENGINES, check_words

    if host is not None and engine is not None and engine not in HOST_ENGINES:
        raise PartitionError(
            f"{engine} has no words for what a host computes; write --for "
            f"{' or '.join(HOST_ENGINES)}, or leave --host out"
        )
    if words is not None and (host is None or engine is None):
        raise PartitionError(
            "--words are those of an engine with a host; add such as --host 64GB --for "
            f"{HOST_ENGINES[0]}, or score words without a host by fxpartition score"
        )
    if engine in HOST_ENGINES and host is None and not any(is_host(d.name) for d in devices):
        raise PartitionError(
            f"{engine} has the embedding on the host, and there is none; add such as "
            "--host 64GB@cpu, or 64GB@cpu to --devices"
        )
    if words is not None:
        check_words(words, [device.name for device in devices])


def hosted_rows(found: HostedPlan) -> list[str]:
    """Return devices, modes and memory of a plan as lines of text."""
    cost = found.evaluation
    header = ("device", "usable", "for good", "for loads", *_MODE_WORDS.values())
    rows = [
        (
            device.name,
            format_bytes(device.memory_bytes),
            format_bytes(cost.held_bytes[device.name]),
            format_bytes(cost.buffer_bytes[device.name]),
            *map(str, found.counts[device.name].values()),
        )
        for device in found.instance.devices
    ]
    host = f"host: {format_bytes(cost.host_bytes)}"
    return [*table_lines(header, rows, below=_modules(found)), host]


def hosted_modules(found: HostedPlan) -> list[str]:
    """Return the units of all devices, one line per device and mode."""
    by_device = zip(found.instance.devices, _modules(found), strict=True)
    return [f"{device.name} {line}" for device, lines in by_device for line in lines]


def _modules(found: HostedPlan) -> list[list[str]]:
    """Return the units of each device, one line per mode."""
    placed = found.instance.units_of(found.plan)
    tree = ModuleTree({unit: unit for unit in placed})
    labelled: dict[str, list[str]] = {device.name: [] for device in found.instance.devices}
    for device, lines in labelled.items():
        for mode, label in _MODE_WORDS.items():
            own = [unit for unit, place in placed.items() if place == (device, mode)]
            lines += [f"{label}: {tree.words(own, _MOST_NAMES)}"] * bool(own)
    return [*labelled.values()]


def why_no_plan(found: HostedPlan | GgufPlan) -> str:
    """Return the reason of a plan that is missing."""
    if found.solved.status is not SolveStatus.INFEASIBLE:
        return "no plan found in time; a longer --time-limit may tell"
    first, room = found.instance.units[0], found.instance.host_bytes
    if found.host_has_first and room is not None and room < first.held_bytes:
        return (
            f"the embedding, on the host, is {format_bytes(first.held_bytes)}, and beside the "
            f"buffer of what runs there the host has {format_bytes(room)}; give a larger --host"
        )
    if limit_ns := found.asked.first_token_limit_ns:
        return (
            f"no plan that fits has its first token within {format_ns(limit_ns)}; give a longer "
            "--first-token, or the devices or the host (--host) more memory"
        )
    needed = format_bytes(sum(unit.held_bytes for unit in found.instance.units))
    context = "" if found.objective == "context" else "a shorter --context, "
    pins = ", or leave pins out" if found.asked.pins else ""
    return (
        f"weights and caches of {found.asked.context} tokens are {needed}; give {context}a smaller "
        f"--cache-type, or the devices or the host (--host) more memory{pins}"
    )
