"""Devices, the links between them, and the charging of transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from solver.model.checks import (
    as_mapping,
    check_choice,
    check_name,
    check_natural,
    check_positive_or_none,
    only_given,
    remake,
)
from solver.model.errors import PartitionError
from solver.model.quantities import parse_memory
from solver.model.text import shown

KiB: Final = 1024
"""Bytes of a kibibyte."""
MiB: Final = 1024**2
"""Bytes of a mebibyte."""
GiB: Final = 1024**3
"""Bytes of a gibibyte."""

STAGING_HOST: Final = "host"
"""Name of the staging memory in the links of a host-staged interconnect."""

DEFAULT_DEVICE_CLASS: Final = "default"
"""The default class of a device."""

Charging = Literal["peer_to_peer", "host_staged", "relayed"]
CHARGINGS: Final[tuple[str, ...]] = ("peer_to_peer", "host_staged", "relayed")


@dataclass(frozen=True, slots=True, init=False)
class Device:
    """A device that runs one stage.

    Parameters
    ----------
    name : str
        Unique, such as ``"cuda:0"``.
    memory_bytes : int, float or str, optional
        Memory capacity: a whole number of bytes, such as ``8e9``, or a text with a unit, such as
        ``"8GiB"``; None, or ``"unlimited"``, is unlimited. The attribute is an int or None.
    device_class : str
        Key into ``Operator.latency_ns`` if that is a mapping.
    is_host : bool
        True if it pays no transfers under host-staged charging.
    """

    name: str
    memory_bytes: int | None = None
    device_class: str = DEFAULT_DEVICE_CLASS
    is_host: bool = False
    __repr__ = only_given

    def __init__(
        self,
        name: str,
        memory_bytes: float | str | None = None,
        device_class: str = DEFAULT_DEVICE_CLASS,
        is_host: bool = False,
    ) -> None:
        check_name(name, "device name")
        if name == STAGING_HOST:
            raise PartitionError(
                f"device name {STAGING_HOST!r} is taken by the staging memory of host-staged "
                "links; choose another, such as 'cpu'"
            )
        where = f"device {name!r}"
        if isinstance(memory_bytes, str):
            memory_bytes = parse_memory(memory_bytes, where, 'write for example "24GiB"')
        elif isinstance(memory_bytes, float) and memory_bytes.is_integer():
            memory_bytes = int(memory_bytes)
        check_positive_or_none(memory_bytes, f"{where}: memory_bytes", "unlimited memory")
        check_name(device_class, f"{where}: device_class")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "memory_bytes", memory_bytes)
        object.__setattr__(self, "device_class", device_class)
        object.__setattr__(self, "is_host", is_host)


@dataclass(frozen=True, slots=True)
class Link:
    """A directed connection: transfer time = `latency_ns` + bytes / bandwidth, rounded up.

    `bandwidth_bytes_per_s` None is unlimited.
    """

    bandwidth_bytes_per_s: int | None = None
    latency_ns: int = 0
    __repr__ = only_given

    def __post_init__(self) -> None:
        check_positive_or_none(
            self.bandwidth_bytes_per_s, "link bandwidth_bytes_per_s", "unlimited"
        )
        check_natural(self.latency_ns, "link latency_ns")

    def transfer_ns(self, value_bytes: int) -> int:
        """Return the time to move `value_bytes` bytes, in integer nanoseconds."""
        if self.bandwidth_bytes_per_s is None:
            return self.latency_ns
        return self.latency_ns - (-value_bytes * 1_000_000_000 // self.bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Interconnect:
    """Links between devices, and the rule that charges transfers.

    Parameters
    ----------
    default : Link
        The link of every ordered pair not in `links`.
    links : mapping of (str, str) to Link
        Links by ordered pair of device names. Under host-staged charging only pairs with
        `STAGING_HOST` count: ``(device, "host")`` to write, ``("host", device)`` to read.
    charging : {"peer_to_peer", "host_staged", "relayed"}
        Peer-to-peer: the producer pays one send per consuming device, each of those one
        receive. Host-staged: the producer pays one write, each consuming device one read,
        and devices with ``is_host`` nothing. Relayed: stages relay to the next one all values
        that it or a later stage reads, as pipelines do; each hop costs a send and a receive.
    overlap : bool
        Compute, send and receive of a device overlap: its load is the largest of the three
        instead of their sum.
    """

    default: Link = field(default_factory=Link)
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    charging: Charging = "peer_to_peer"
    overlap: bool = False
    __repr__ = only_given

    def __post_init__(self) -> None:
        check_choice(self.charging, CHARGINGS, "interconnect charging")
        if not isinstance(self.default, Link):
            raise PartitionError(
                f"interconnect default is {shown(self.default)}; write a Link(...), such as Link()"
            )
        links = as_mapping(self.links, "interconnect links", Link)
        for pair in links:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise PartitionError(
                    f"interconnect links has the key {shown(pair)}; write two names of devices, "
                    "such as ('cuda:0', 'cuda:1')"
                )
        object.__setattr__(self, "links", MappingProxyType(links))

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    def link(self, source: str, target: str) -> Link:
        """Return the link from device `source` to device `target`."""
        return self.links.get((source, target), self.default)


def check_interconnect(interconnect: object) -> None:
    """Raise PartitionError unless `interconnect` is an :class:`Interconnect`."""
    if not isinstance(interconnect, Interconnect):
        raise PartitionError(
            f"interconnect is {shown(interconnect)}; write Interconnect(...), or a preset such as "
            "solver.PCIE"
        )


PCIE: Final = Interconnect(Link(25_000_000_000, 10_000))
"""PCIe 4.0 x16, peer to peer: copies reach about 25 of the nominal 31.5 GB/s, and take some
10 us to start."""
