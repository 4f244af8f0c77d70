"""Links between devices, and between the devices and the host, of plans with a host."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from solver import Interconnect, Link, PartitionError, PartitionProblem
from solver.model.devices import STAGING_HOST
from solver.offload.model import OffloadDevice


def check_links(interconnect: Interconnect, places: Sequence[OffloadDevice]) -> None:
    """Refuse links that plans with a host do not support.

    Raises
    ------
    PartitionError
        If transfers overlap compute or are staged by a host, or the links from devices to later
        ones differ.
    """
    if interconnect.charging == "host_staged" or interconnect.overlap:
        given = "overlap" if interconnect.overlap else "charging"
        raise PartitionError(
            "with a host, values go from one device to the next while both wait; leave "
            f"{given} of the interconnect out"
        )
    of_link: dict[Link, tuple[str, str]] = {}
    for pair in itertools.combinations([place.name for place in places], 2):
        of_link.setdefault(interconnect.link(*pair), pair)
    if len(of_link) > 1:
        (one, two), (other, last) = list(of_link.values())[:2]
        raise PartitionError(
            f"with a host, all devices have one link to those after them, and {one!r} to {two!r} "
            f"is another one than {other!r} to {last!r}; leave out [[links]] between devices, or "
            "the host"
        )


def stage_hop_ns(
    interconnect: Interconnect, places: Sequence[OffloadDevice], size_bytes: int
) -> int:
    """Return the nanoseconds of a transfer from a device to a later one."""
    names = [place.name for place in places]
    link = interconnect.link(*names[:2]) if len(names) > 1 else interconnect.default
    return link.transfer_ns(size_bytes)


def host_hop_ns(
    interconnect: Interconnect, places: Sequence[OffloadDevice], size_bytes: int
) -> int:
    """Return the most nanoseconds of a transfer between the host and a device, either way."""
    back = [interconnect.links.get((place.name, STAGING_HOST), place.link) for place in places]
    links = (*(place.link for place in places), *back)
    return max(link.transfer_ns(size_bytes) for link in links)


def crossing_bytes(problem: PartitionProblem, units: Mapping[str, Sequence[str]]) -> int:
    """Return the most bytes that one unit sends to other units."""
    unit_of = {name: unit for unit, names in units.items() for name in names}
    passed: dict[str, int] = {}
    for op in problem.operators:
        if any(unit_of[reader] != unit_of[op.name] for reader in problem.readers_of[op.name]):
            unit = unit_of[op.name]
            passed[unit] = passed.get(unit, 0) + op.value_bytes
    return max(passed.values(), default=0)
