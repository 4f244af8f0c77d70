"""Model of offloading where memory is short: units, devices with their links, the host, and a plan.

The semantics are those of ``docs/offload.md``; :mod:`solver.offload.evaluate` alone defines cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal

from solver.model.checks import (
    check_choice,
    check_name,
    check_natural,
    check_positive_or_none,
    check_unique,
    only_given,
    remake,
)
from solver.model.devices import Device, Link
from solver.model.errors import PartitionError
from solver.model.plan import MODES, Mode, PartitionPlan
from solver.model.problem_checks import MAX_TOTAL
from solver.model.quantities import parse_memory
from solver.model.text import shown

OffloadObjective = Literal["latency", "bottleneck"]
Prefetch = Literal["buffer", "next", "none"]

OFFLOAD_OBJECTIVES: Final[tuple[str, ...]] = ("latency", "bottleneck")
"""What a plan may minimise."""
PREFETCHES: Final[tuple[str, ...]] = ("buffer", "next", "none")
"""When loads begin; see ``docs/offload.md``."""
ALIGNMENT_BYTES: Final = 256
"""Alignment in bytes of a loaded tensor, as kernels expect it."""


def aligned_bytes(size_bytes: int) -> int:
    """Return the bytes that a tensor occupies where it is loaded."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class Unit:
    """Operators that run one after the other and share a mode, such as half a layer.

    Parameters
    ----------
    name : str
        Unique among units.
    weight_bytes : int
        Bytes transferred if the unit is streamed.
    cache_bytes : int
        State that is written, such as keys and values. It stays where the unit runs.
    compute_ns : int or mapping of str to int
        Time of one forward on a device: one number, or one per device class.
    host_ns : int, optional
        Time of one forward on the host; None if the unit cannot run there.
    written : bool
        The unit writes its weights, so that they cannot be streamed.
    padding_bytes : int
        Bytes that the loaded weights take besides their own, since a tensor begins at a
        multiple of `ALIGNMENT_BYTES` there (:func:`aligned_bytes`).
    """

    name: str
    weight_bytes: int = 0
    cache_bytes: int = 0
    compute_ns: int | Mapping[str, int] = 0
    host_ns: int | None = None
    written: bool = False
    padding_bytes: int = 0
    __repr__ = only_given

    def __post_init__(self) -> None:
        check_name(self.name, "unit name")
        where = f"unit {self.name!r}: "
        check_natural(self.weight_bytes, f"{where}weight_bytes")
        check_natural(self.cache_bytes, f"{where}cache_bytes")
        check_natural(self.padding_bytes, f"{where}padding_bytes")
        if isinstance(self.compute_ns, Mapping):
            for device_class, compute_ns in self.compute_ns.items():
                check_natural(compute_ns, f"{where}compute_ns[{device_class!r}]")
            object.__setattr__(self, "compute_ns", MappingProxyType(dict(self.compute_ns)))
        else:
            check_natural(self.compute_ns, f"{where}compute_ns")
        if self.host_ns is not None:
            check_natural(self.host_ns, f"{where}host_ns")
        if not isinstance(self.written, bool):
            raise PartitionError(f"{where}written is {shown(self.written)}; write True or False")

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that it may have; without weights there is nothing to stream."""
        is_allowed = {
            "resident": True,
            "streamed": self.weight_bytes > 0 and not self.written,
            "host": self.host_ns is not None,
        }
        return tuple(mode for mode in MODES if is_allowed[mode])

    @property
    def held_bytes(self) -> int:
        """Bytes held where it is resident, or runs on the host."""
        return self.weight_bytes + self.cache_bytes

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the room for loads that a streamed unit takes."""
        return self.weight_bytes + self.padding_bytes

    def compute_on(self, device_class: str) -> int:
        """Return the time of one forward on a device of `device_class`, in nanoseconds."""
        if isinstance(self.compute_ns, Mapping):
            return self.compute_ns[device_class]
        return self.compute_ns


@dataclass(frozen=True, slots=True)
class OffloadDevice:
    """A device, and the link by which weights reach it from the host.

    Parameters
    ----------
    device : Device
        Its memory is the limit of weights and caches.
    link : Link
        Time of a load; the loads of a device come one after the other.
    """

    device: Device
    link: Link = field(default_factory=Link)
    __repr__ = only_given

    def __post_init__(self) -> None:
        if not isinstance(self.device, Device):
            raise PartitionError(f"device is {shown(self.device)}; write a solver.Device")
        if not isinstance(self.link, Link):
            raise PartitionError(
                f"device {self.device.name!r}: link is {shown(self.link)}; write a solver.Link"
            )

    @property
    def name(self) -> str:
        """The name of the device."""
        return self.device.name

    def compute_ns(self, unit: Unit) -> int:
        """Return the time of one forward of `unit` here."""
        return unit.compute_on(self.device.device_class)


@dataclass(frozen=True, slots=True, init=False)
class OffloadHost:
    """The host.

    Parameters
    ----------
    memory_bytes : int or str, optional
        For the weights of streamed units, and weights and caches of units that run there; a
        whole number, or a text with a unit; None is unlimited.
    """

    memory_bytes: int | None = None

    def __init__(self, memory_bytes: int | str | None = None) -> None:
        if isinstance(memory_bytes, str):
            memory_bytes = parse_memory(memory_bytes, "host", 'write for example "64GiB"')
        check_positive_or_none(memory_bytes, "host: memory_bytes", "unlimited memory")
        object.__setattr__(self, "memory_bytes", memory_bytes)


@dataclass(frozen=True)
class OffloadProblem:
    """Units in execution order, and the devices that may run them.

    Parameters
    ----------
    units : sequence of Unit
        In execution order.
    devices : sequence of OffloadDevice
        In the order in which data passes through them; a plan may leave some out.
    host : OffloadHost
        Memory of the host.
    stage_hop_ns : int
        Time that activations take from one device to another.
    host_hop_ns : int
        Time that activations take from a device to the host, or back.
    objective : {"latency", "bottleneck"}
        The time of a forward if the next begins when it is done, or the time between two
        forwards of a pipeline whose stages work on different ones.

    Raises
    ------
    PartitionError
        When anything is inconsistent; the message names the item and the remedy.
    """

    units: tuple[Unit, ...]
    devices: tuple[OffloadDevice, ...]
    host: OffloadHost = field(default_factory=OffloadHost)
    stage_hop_ns: int = 0
    host_hop_ns: int = 0
    objective: OffloadObjective = "latency"
    __repr__ = only_given

    def __post_init__(self) -> None:
        for name, kind in (("units", Unit), ("devices", OffloadDevice)):
            items = tuple(getattr(self, name))
            object.__setattr__(self, name, items)
            if not items:
                raise PartitionError(f"{name} is empty; give at least one {kind.__name__}")
            for item in items:
                if not isinstance(item, kind):
                    raise PartitionError(f"{name} holds {item!r}; write {kind.__name__}(...)")
            check_unique((item.name for item in items), name[:-1])
        if not isinstance(self.host, OffloadHost):
            raise PartitionError(f"host is {shown(self.host)}; write OffloadHost(...)")
        check_natural(self.stage_hop_ns, "stage_hop_ns")
        check_natural(self.host_hop_ns, "host_hop_ns")
        check_choice(self.objective, OFFLOAD_OBJECTIVES, "objective")
        for unit in self.units:
            self._check_classes(unit)
        self._check_totals()

    def _check_classes(self, unit: Unit) -> None:
        if not isinstance(unit.compute_ns, Mapping):
            return
        for place in self.devices:
            if place.device.device_class not in unit.compute_ns:
                raise PartitionError(
                    f"unit {unit.name!r}: compute_ns lacks class {place.device.device_class!r} of "
                    f"device {place.name!r}; add it"
                )

    def _check_totals(self) -> None:
        sizes = sum(unit.held_bytes + unit.padding_bytes for unit in self.units)
        capacities = [place.device.memory_bytes or 0 for place in self.devices]
        if max(sizes, *capacities) > MAX_TOTAL:
            raise PartitionError(
                f"weights and caches, or the memory of a device, are above {MAX_TOTAL} bytes "
                "(1 PB); write less, or None for unlimited memory"
            )
        if self.most_ns > MAX_TOTAL:
            raise PartitionError(
                f"times add up to more than {MAX_TOTAL} ns; check units, links and hops"
            )

    @cached_property
    def most_ns(self) -> int:
        """A time that no round exceeds: all in the slowest way, one after the other."""
        hop_ns = max(self.stage_hop_ns, self.host_hop_ns)
        total = len(self.units) * hop_ns
        for unit in self.units:
            times = [unit.host_ns or 0]
            for place in self.devices:
                times.append(place.link.transfer_ns(unit.weight_bytes) + place.compute_ns(unit))
            total += max(times)
        return total

    @cached_property
    def device_index(self) -> Mapping[str, int]:
        """Position of every device, by name."""
        return {place.name: index for index, place in enumerate(self.devices)}

    def plan(self, devices: Sequence[int], modes: Sequence[Mode]) -> PartitionPlan:
        """Return the plan that has these devices, by position, and modes."""
        names = [unit.name for unit in self.units]
        return PartitionPlan(
            {name: self.devices[device].name for name, device in zip(names, devices, strict=True)},
            tuple(self.devices[device].name for device in sorted(set(devices))),
            mode_of=dict(zip(names, modes, strict=True)),
        )
