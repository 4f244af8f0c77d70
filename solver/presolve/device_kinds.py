"""Devices that nothing tells apart, orders of such kinds, and devices whose memory matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solver.model.devices import Device
from solver.presolve.instance import Instance

Order = tuple[int, ...]
"""Kinds of devices by slot."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices that any plan may exchange without changing cost or feasibility."""

    devices: tuple[Device, ...]

    @property
    def device(self) -> Device:
        """One of them."""
        return self.devices[0]


def interchangeable_kinds(
    units: Instance, linked: Mapping[str, int | str] | None = None
) -> tuple[DeviceKind, ...]:
    """Group the devices of a problem into kinds that no constraint and no cost tells apart.

    Parameters
    ----------
    linked : mapping of str to int or str, optional
        What tells devices apart by their links; the names of all that the interconnect names if
        it is not given.
    """
    problem = units.problem
    pins = {allowed for allowed in units.allowed_devices if allowed is not None}
    if linked is None:
        linked = {end: end for pair in problem.interconnect.links for end in pair}
    kinds: dict[tuple[object, ...], list[Device]] = {}
    for device in problem.devices:
        key = (
            device.memory_bytes,
            device.device_class,
            device.is_host,
            frozenset(pin for pin in pins if device.name in pin),
            linked.get(device.name, ""),
        )
        kinds.setdefault(key, []).append(device)
    return tuple(DeviceKind(tuple(devices)) for devices in kinds.values())


def device_orders(
    kinds: Sequence[DeviceKind], positions: int, *, every_length: bool, most: int
) -> list[tuple[int, ...]] | None:
    """List the ways to put kinds of devices on positions, up to exchanges within a kind.

    Parameters
    ----------
    positions : int
        Length of the orders.
    every_length : bool
        Also list all shorter ones.
    most : int
        Give up beyond this many.

    Returns
    -------
    list of tuple of int, or None
        Kinds by position; None if there are more than `most`.
    """
    counts = [len(kind.devices) for kind in kinds]
    orders: list[tuple[int, ...]] = []
    pending: list[tuple[int, ...]] = [()]
    while pending:
        prefix = pending.pop()
        if len(prefix) == positions or (every_length and prefix):
            orders.append(prefix)
        if len(prefix) < positions:
            pending.extend(
                (*prefix, kind) for kind, count in enumerate(counts) if prefix.count(kind) < count
            )
        if len(orders) + len(pending) > most:
            return None
    return orders


def limited_devices(units: Instance) -> set[str]:
    """Return the devices whose memory matters: not those that could hold everything.

    A stage holds no value, storage or buffer twice, and of a microbatch in flight what is saved.
    """
    problem = units.problem
    most = sum(entry.size_bytes for entry in units.weights)
    if problem.memory_model != "weights":
        crossing = (*units.nets, *units.relays, *units.input_nets)
        stage = sum(net.held_bytes + net.returned_bytes for net in crossing)
        stage += sum(storage.size_bytes for storage in units.storages)
        stage += (problem.microbatches - 1) * sum(entry.size_bytes for entry in units.saved)
        most += problem.chunks_per_device * stage
    return {
        device.name
        for device in problem.devices
        if device.memory_bytes is not None
        and (device.memory_bytes < most or "peak_memory" in problem.objective)
    }
