"""Kinds of interchangeable devices, their sets and orders; devices whose memory matters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from solver.model.arrays import Floats, Ints
from solver.model.devices import Device
from solver.presolve.instance import Instance

Kind = TypeVar("Kind")

_MOST_COMPARED = 40
"""Most kinds of which all pairs are compared; of more, neighbours only."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices that any plan may exchange without changing cost or feasibility."""

    devices: tuple[Device, ...]

    @property
    def device(self) -> Device:
        """One of them."""
        return self.devices[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(device.name for device in self.devices)

    def stretched(self, permille: int) -> DeviceKind:
        """Return the same devices with scaled capacities."""
        return DeviceKind(
            tuple(
                device
                if device.memory_bytes is None
                else replace(device, memory_bytes=device.memory_bytes * permille // 1000)
                for device in self.devices
            )
        )


def capacity_bytes(device: Device) -> float:
    """Return the memory of a device, infinite without a limit."""
    return math.inf if device.memory_bytes is None else float(device.memory_bytes)


def usable_devices(units: Instance) -> int:
    """Return the most devices that a plan can use."""
    return min(units.problem.most_devices, len(units))


def interchangeable_kinds(
    units: Instance, linked: Mapping[str, int | str] | None = None
) -> tuple[DeviceKind, ...]:
    """Group the devices of a problem into kinds with the same constraints and costs.

    `linked` has a key that distinguishes devices by their links. By default each device with a link
    of its own in the interconnect is distinct.
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


def merged_kinds(
    counts: Mapping[Kind, int],
    most_sets: int,
    difference: Callable[[Kind, Kind], Any],
    best_of: Callable[[Kind, Kind], Kind],
    neighbours: Callable[[Kind], Any],
) -> dict[Kind, int]:
    """Merge similar kinds until few sets of devices are left.

    `counts` has the devices of each kind. While there are more than `most_sets`, the two kinds with
    the least `difference`, the loss of merging them, are merged; None if they must not be.
    `best_of` is a kind at least as capable as both, so that the reach of devices only grows. If
    kinds are many, only those are compared that the sort key `neighbours` makes neighbours.
    """
    few = dict(counts)
    while math.prod(count + 1 for count in few.values()) > most_sets:
        if len(few) <= _MOST_COMPARED:
            pairs = list(itertools.combinations(few, 2))
        else:
            pairs = list(itertools.pairwise(sorted(few, key=neighbours)))
        given = [(difference(*pair), pair) for pair in pairs]
        allowed = [entry for entry in given if entry[0] is not None]
        if not allowed:
            break
        _, (one, other) = min(allowed, key=lambda entry: entry[0])
        best, count = best_of(one, other), few.pop(one) + few.pop(other)
        few[best] = few.get(best, 0) + count
    return few


@dataclass(frozen=True, eq=False)
class DeviceSets:
    """Sets of devices up to exchanges within a kind, the smaller ones first; set 0 is empty.

    By set and kind, `counts` has the devices of the kind, and `rest` the set without one of them,
    -1 if it has none.
    """

    counts: Ints
    rest: Ints

    @classmethod
    def of(cls, limits: Sequence[int], most_devices: int) -> DeviceSets:
        """List the sets of at most `most_devices`, given the number of devices of each kind."""
        shape = [min(limit, most_devices) + 1 for limit in limits]
        # Sets by their number in mixed radix, where a device of a kind adds its stride.
        every = np.stack(np.unravel_index(np.arange(math.prod(shape)), shape), axis=1)
        strides = np.cumprod([1, *shape[:0:-1]])[::-1]
        sizes = every.sum(axis=1)
        listed = np.argsort(sizes, kind="stable")[: int((sizes <= most_devices).sum())]
        place = np.empty(len(every), dtype=np.int64)
        place[listed] = np.arange(len(listed))
        counts = every[listed]
        return cls(counts, np.where(counts > 0, place[listed[:, None] - strides], -1))

    @classmethod
    def in_order(cls, order: Sequence[int], kinds: int) -> DeviceSets:
        """List the sets of the first 0, 1, 2, ... devices of an order, given their kinds."""
        places = np.arange(len(order))
        added = np.zeros((len(order) + 1, kinds), dtype=np.int64)
        added[places + 1, list(order)] = 1
        rest = np.full_like(added, -1)
        rest[places + 1, list(order)] = places
        return cls(added.cumsum(axis=0), rest)

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def sizes(self) -> Ints:
        """Devices in each set."""
        sizes: Ints = self.counts.sum(axis=1)
        return sizes

    @property
    def most(self) -> int:
        """Devices in the largest set."""
        return int(self.sizes[-1])

    @cached_property
    def levels(self) -> tuple[slice, ...]:
        """The sets of 0, 1, 2, ... devices."""
        ends = np.searchsorted(self.sizes, np.arange(self.most + 2)).tolist()
        return tuple(itertools.starmap(slice, itertools.pairwise(ends)))

    @cached_property
    def steps(self) -> tuple[tuple[tuple[int, Ints, Ints], ...], ...]:
        """By level and kind the sets with a device of the kind, and the sets without one of it."""
        found: list[tuple[tuple[int, Ints, Ints], ...]] = []
        for level in self.levels:
            rest = self.rest[level]
            some = [np.flatnonzero(column >= 0) for column in rest.T]
            steps = [(k, own + level.start, rest[own, k]) for k, own in enumerate(some)]
            found.append(tuple(step for step in steps if len(step[1])))
        return tuple(found)

    @cached_property
    def smaller(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each set the pairs (kind, set without one device of that kind)."""
        rows = self.rest.tolist()
        return tuple(tuple((k, rest) for k, rest in enumerate(row) if rest >= 0) for row in rows)

    @cached_property
    def larger(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each set the pairs (kind, set with one device of that kind more)."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.smaller]
        for number, steps in enumerate(self.smaller):
            for kind, rest in steps:
                found[rest].append((kind, number))
        return tuple(map(tuple, found))


def sums_by_set(
    counts: Ints, everything: Sequence[int], amounts: Sequence[float], most: int
) -> tuple[Floats, Floats]:
    """Sum amounts over the devices of each set, and over the best others that may join it.

    `counts` is as in :class:`DeviceSets`, `everything` has all devices of each kind, and `amounts`
    the amount of a device of each kind, maybe infinite. A plan may use `most` devices.
    """
    best_first = np.argsort(-np.array(amounts), kind="stable")
    each = np.array(amounts, dtype=np.float64)[best_first]
    own = counts[:, best_first]
    others = np.array(everything)[best_first] - own
    left = np.maximum(most - own.sum(axis=1), 0)[:, None]
    others = np.clip(left - (others.cumsum(axis=1) - others), 0, others)
    # Avoid infinity times zero.
    with_own, with_others = (
        np.multiply(taken, each, where=taken > 0, out=np.zeros(taken.shape)).sum(axis=1)
        for taken in (own, others)
    )
    return with_own, with_others


def device_orders(
    kinds: Sequence[DeviceKind], positions: int, *, every_length: bool, most: int
) -> list[tuple[int, ...]] | None:
    """List the ways to put kinds of devices on positions, up to exchanges within a kind.

    The orders, tuples of kinds, have length `positions`, or any up to it if `every_length`; None if
    there are more than `most`.
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
    """Return the devices whose memory matters: those that could not hold everything.

    A stage holds no value, storage or buffer twice, and the saved bytes of each microbatch in
    flight.
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
