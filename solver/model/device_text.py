"""Devices given as text: ``4x24GiB``, ``2x80GB@a100-80gb,24GiB``, or ``auto``.

They are named ``cuda:0``, ``cuda:1``, and so on, and those of class ``cpu``, ``cpu:0`` and so on.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Final

from solver.model.checks import instances
from solver.model.devices import DEFAULT_DEVICE_CLASS, Device
from solver.model.errors import PartitionError
from solver.model.quantities import check_digits, parse_memory

EXAMPLE: Final = "write for example 4x24GiB, or 80GB,24GB, or 2x80GiB@a100-80gb"
_MAX_DEVICES: Final = 1024
_ENTRY: Final = re.compile(
    r"\s*(?:(?P<count>[0-9]+)\s*[x*]\s*)?(?P<memory>[^@]*?)\s*(?:@(?P<cls>.*))?"
)


def read_devices(text: str, named: str = "devices", example: str = EXAMPLE) -> tuple[Device, ...]:
    """Read devices from a string.

    Its entries are ``[COUNTx]MEMORY[@CLASS]``, with commas between them, or ``auto`` for the CUDA
    devices of this machine (:mod:`solver.model.cuda_driver`). MEMORY has a unit, or is
    ``unlimited``. CLASS is not checked here. Messages call the argument `named`, and advise by
    `example`.

    >>> [device.memory_bytes for device in read_devices("2x1KiB,3KB")]
    [1024, 1024, 3000]
    >>> read_devices("24GB,64GB@cpu")[1]
    Device(name='cpu:0', memory_bytes=64000000000, device_class='cpu')
    """
    if not text.strip():
        raise PartitionError(f"{named}: the device list is empty; {example}")
    where = f"{named} {text!r}"
    if text.strip().lower() == "auto":
        from solver.model.cuda_driver import visible_devices

        return visible_devices(where, example)
    devices: list[Device] = []
    for part in text.split(","):
        match = _ENTRY.fullmatch(part)
        if not part.strip() or match is None:
            raise PartitionError(f"{where}: an entry is empty; {example}")
        digits = match["count"] or "1"
        check_digits(digits, where)
        count = check_count(int(digits), where, example)
        memory_bytes = parse_memory(match["memory"], where, example)
        device_class = DEFAULT_DEVICE_CLASS if match["cls"] is None else match["cls"].strip()
        if not device_class:
            raise PartitionError(f"{where}: no class follows the @; {example}")
        devices += [Device("unnamed", memory_bytes, device_class)] * count
        check_count(len(devices), where, example)
    return _numbered(devices)


def as_devices(value: object) -> tuple[Device, ...]:
    """Return the devices of a ``devices`` argument: a sequence of devices, or a text.

    Examples
    --------
    >>> [device.name for device in as_devices("2x24GB")]
    ['cuda:0', 'cuda:1']
    >>> as_devices([24])
    Traceback (most recent call last):
    solver.model.errors.PartitionError: devices: 24 is not a Device; write a list of Device(...), \
or a text such as "24GB,12GB"
    """
    if isinstance(value, str):
        if value.endswith((".toml", ".json")):
            raise PartitionError(
                f"devices {value!r}: only the command reads files of devices; write a list of "
                "Device(...), with their speeds and links in Costs(...)"
            )
        return read_devices(value)
    try:
        return instances(value, Device, "devices")
    except PartitionError as error:
        raise PartitionError(f'{error}, or a text such as "24GB,12GB"') from None


def check_count(count: int, where: str, example: str = EXAMPLE) -> int:
    """Return `count`; raise PartitionError if a plan cannot have that number of devices."""
    if not 1 <= count <= _MAX_DEVICES:
        raise PartitionError(
            f"{where}: {count} devices, but a set has from 1 to {_MAX_DEVICES}; {example}"
        )
    return count


def _numbered(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Name the devices, counting CPUs and CUDA devices from 0."""
    counters: dict[str, int] = {}
    named: list[Device] = []
    for device in devices:
        prefix = "cpu" if device.device_class == "cpu" else "cuda"
        number = counters.get(prefix, 0)
        counters[prefix] = number + 1
        named.append(dataclasses.replace(device, name=f"{prefix}:{number}"))
    return tuple(named)
