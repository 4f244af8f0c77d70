"""Devices as a person writes them: ``4x24GiB``, ``2x80GB@a100-80gb,24GiB``, or a file.

Devices without a name are called ``cuda:0``, ``cuda:1``, and so on; those of class ``cpu`` are
called ``cpu:0`` and so on.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.problems.toml_files import read_toml, table_fields
from solver import DEFAULT_DEVICE_CLASS, Device, Interconnect, Link, PartitionError
from solver.io.files import read_json
from solver.model.quantities import check_digits, parse_memory, quantity

if TYPE_CHECKING:
    from fx_bridge.costs.device_specs import DeviceSpec

EXAMPLE: Final = "write for example 4x24GiB, or 80GB,24GB, or 2x80GiB@a100-80gb"
_MAX_DEVICES: Final = 1024
_ENTRY: Final = re.compile(
    r"\s*(?:(?P<count>[0-9]+)\s*[x*]\s*)?(?P<memory>[^@]*?)\s*(?:@(?P<cls>.*))?"
)
_SPEED_FIELDS: Final = ("flops_per_s", "memory_bandwidth_bytes_per_s", "launch_overhead_ns")
_DEVICE_FIELDS: Final = (
    "name", "count", "memory", "class", "is_host", "attention", *_SPEED_FIELDS
)  # fmt: skip
_LINK_FIELDS: Final = ("bandwidth", "latency_ns")
DEVICE_SECTIONS: Final = ("devices", "interconnect", "links")


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """Devices, how they are connected where that was said, and the speed of each class.

    Attributes
    ----------
    devices : tuple of Device
        In the order in which the person named them.
    interconnect : Interconnect or None
        None when only memory and classes were given.
    specs : tuple of DeviceSpec
        Speeds of the classes that the file itself defines; presets are not repeated.
    """

    devices: tuple[Device, ...]
    interconnect: Interconnect | None = None
    specs: tuple[tuple[str, DeviceSpec], ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The device classes, each once."""
        return tuple(dict.fromkeys(device.device_class for device in self.devices))

    @property
    def spec_of(self) -> dict[str, DeviceSpec]:
        """The speed of every class of these devices."""
        own = dict(self.specs)
        presets = _presets()
        return {name: own[name] if name in own else presets[name] for name in self.classes}


def parse_devices(text: str) -> DeviceSet:
    """Read devices from a string, or from the .toml or .json file that it names.

    Parameters
    ----------
    text : str
        Entries ``[COUNTx]MEMORY[@CLASS]`` with commas between them. MEMORY has a unit, or is
        ``unlimited``; CLASS is a preset.

    Raises
    ------
    PartitionError
        One line that says what is wrong and what to write.

    Examples
    --------
    >>> [device.memory_bytes for device in parse_devices("2x1KiB,3KB").devices]
    [1024, 1024, 3000]
    >>> [device.name for device in parse_devices("2x1KiB").devices]
    ['cuda:0', 'cuda:1']
    """
    if not text.strip():
        raise PartitionError(f"the device list is empty; {EXAMPLE}")
    if text.strip().lower().endswith((".toml", ".json")):
        return _from_file(Path(text.strip()))
    entries: list[tuple[str | None, int | None, str]] = []
    for part in text.split(","):
        match = _ENTRY.fullmatch(part)
        if not part.strip() or match is None:
            raise PartitionError(f"devices {text!r}: an entry is empty; {EXAMPLE}")
        where = f"devices {text!r}"
        count = _count(_whole(match["count"] or "1", where), where)
        memory_bytes = parse_memory(match["memory"], where, EXAMPLE)
        device_class = DEFAULT_DEVICE_CLASS
        if match["cls"] is not None:
            device_class = _known_class(match["cls"].strip(), (), where)
        entries += [(None, memory_bytes, device_class)] * count
        _count(len(entries), where)
    return DeviceSet(_named(Device("unnamed", memory, cls) for _, memory, cls in entries))


def parse_link(text: str) -> Link:
    """Read a link ``BANDWIDTH[,LATENCY]`` such as ``25GB/s,10us``, or ``unlimited``.

    Raises
    ------
    PartitionError
        One line that says what is wrong and what to write.
    """
    example = "write for example 25GB/s, or 25GB/s,10us, or unlimited"
    where = f"link {text!r}"
    bandwidth, comma, latency = text.partition(",")
    latency_ns = 0
    if comma:
        match = re.fullmatch(r"\s*([0-9]+)\s*(ns|us|ms)\s*", latency)
        if match is None:
            raise PartitionError(f"{where}: {latency.strip()!r} is not a latency; {example}")
        latency_ns = _whole(match[1], where) * {"ns": 1, "us": 1000, "ms": 1_000_000}[match[2]]
    return Link(_bandwidth(bandwidth, where, example), latency_ns)


def _bandwidth(text: str, where: str, example: str) -> int | None:
    if text.strip().lower() == "unlimited":
        return None
    body, slash, per = text.strip().rpartition("/")
    if not slash or per != "s":
        raise PartitionError(f"{where}: {text.strip()!r} is not a bandwidth; {example}")
    rate = math.floor(quantity(body, where, "bandwidth", example))
    if rate < 1:
        raise PartitionError(f"{where}: bandwidth is {text.strip()}; {example}")
    return rate


def _whole(digits: str, where: str) -> int:
    check_digits(digits, where)
    return int(digits)


def _count(count: int, where: str) -> int:
    if not 1 <= count <= _MAX_DEVICES:
        raise PartitionError(
            f"{where}: {count} devices; write a count from 1 to {_MAX_DEVICES}, such as 4x24GiB"
        )
    return count


def _presets() -> Mapping[str, DeviceSpec]:
    from fx_bridge.costs.device_specs import DEVICE_SPECS

    return DEVICE_SPECS


def _known_class(name: str, own: Iterable[str], where: str) -> str:
    if name == DEFAULT_DEVICE_CLASS or name in own:
        return name
    presets = _presets()
    if name in presets:
        return name
    close = [preset for preset in presets if name and preset.startswith(name.lower())]
    close = close or difflib.get_close_matches(name.lower(), presets, n=1, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise PartitionError(
        f"{where}: device class {name!r} is unknown; {hint}the presets are {', '.join(presets)}"
    )


def _named(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return the devices numbered, each kind from 0."""
    counters: dict[str, int] = {}
    named: list[Device] = []
    for device in devices:
        prefix = "cpu" if device.device_class == "cpu" else "cuda"
        number = counters.get(prefix, 0)
        counters[prefix] = number + 1
        named.append(dataclasses.replace(device, name=f"{prefix}:{number}"))
    return tuple(named)


# -- files --------------------------------------------------------------------------------


def _from_file(path: Path) -> DeviceSet:
    is_toml = path.suffix.lower() == ".toml"
    data = read_toml(path, "a list of devices") if is_toml else read_json(path)
    return device_table(data, str(path))


def device_table(data: object, where: str) -> DeviceSet:
    """Read devices from the table that a device file holds; PartitionError starts with `where`."""
    fields = table_fields(data, DEVICE_SECTIONS, where)
    entries = fields.get("devices")
    if not isinstance(entries, list) or not entries:
        raise PartitionError(
            f"{where}: the device list is empty; "
            'give entries under [[devices]], such as memory = "24GiB"'
        )
    specs: dict[str, DeviceSpec] = {}
    devices: list[Device] = []
    for index, entry in enumerate(entries):
        devices += _file_devices(entry, f"{where}: devices[{index}]", specs, len(devices))
        _count(len(devices), where)
    names = [device.name for device in devices]
    for name in names:
        if names.count(name) > 1:
            raise PartitionError(f"{where}: two devices are called {name!r}; name each once")
    return DeviceSet(tuple(devices), _file_interconnect(fields, where, names), tuple(specs.items()))


def _file_devices(
    entry: object, where: str, specs: dict[str, DeviceSpec], offset: int
) -> list[Device]:
    fields = table_fields(entry, _DEVICE_FIELDS, where)
    count = fields.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int):
        raise PartitionError(f"{where}: count is {count!r}; write a whole number")
    _count(count, where)
    if "memory" not in fields:
        raise PartitionError(f'{where}: memory is missing; write for example memory = "24GiB"')
    memory = fields["memory"]
    memory_bytes = (
        memory if not isinstance(memory, str) else parse_memory(memory, f"{where}: memory", EXAMPLE)
    )
    name = fields.get("name")
    if name is None:
        names = [f"cuda:{offset + i}" for i in range(count)]
    elif not isinstance(name, str) or not name:
        raise PartitionError(f"{where}: name is {name!r}; write a name such as cuda:0")
    else:
        names = [name] if count == 1 else [f"{name}:{i}" for i in range(count)]
    device_class = _file_class(fields, where, specs)
    is_host = fields.get("is_host", False)
    if not isinstance(is_host, bool):
        raise PartitionError(f"{where}: is_host is {is_host!r}; write true or false")
    try:
        return [Device(each, memory_bytes, device_class, is_host) for each in names]
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}") from None


def _file_class(fields: dict[str, Any], where: str, specs: dict[str, DeviceSpec]) -> str:
    """Return the class of a device, defining it in `specs` where its speeds are given."""
    given = {
        name: _speed(fields[name], f"{where}: {name}", name)
        for name in _SPEED_FIELDS
        if name in fields
    }
    device_class = fields.get("class")
    if device_class is not None and (not isinstance(device_class, str) or not device_class):
        raise PartitionError(f"{where}: class is {device_class!r}; write a name")
    if not given:
        if "attention" in fields:
            raise PartitionError(f"{where}: attention is given without speeds; give both of them")
        return _known_class(device_class or DEFAULT_DEVICE_CLASS, specs, where)
    for name in _SPEED_FIELDS[:2]:
        if name not in given:
            raise PartitionError(f"{where}: {name} is missing; give both speeds, or a preset class")
    from fx_bridge.costs.device_specs import DeviceSpec

    # Devices of equal speed share a class, so that a solver may exchange them.
    if device_class is None:
        device_class = "-".join(
            f"{value}" for value in (*given.values(), fields.get("attention")) if value is not None
        )
    spec = DeviceSpec(
        name=device_class,
        flops_per_s=given["flops_per_s"],
        memory_bandwidth_bytes_per_s=given["memory_bandwidth_bytes_per_s"],
        launch_overhead_ns=given.get("launch_overhead_ns", 0),
        attention=_attention(fields.get("attention"), where),
    )
    if specs.setdefault(device_class, spec) != spec:
        raise PartitionError(
            f"{where}: class {device_class!r} has other speeds above; use another class name"
        )
    return device_class


def _attention(kernels: Any, where: str) -> tuple[str, ...] | None:
    from fx_bridge.storages.attention import checked_kernels

    try:
        return checked_kernels(kernels)
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}") from None


def _speed(value: object, where: str, name: str) -> Any:
    """Return a speed as a whole number, or FLOP/s by dtype; TOML writes 312e12."""
    if name == "flops_per_s" and isinstance(value, dict) and value:
        return {dtype: _speed(rate, f"{where}.{dtype}", "") for dtype, rate in value.items()}
    least = 0 if name == "launch_overhead_ns" else 1
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1e30:
        want = "a number that is not negative" if least == 0 else "a positive number"
        raise PartitionError(f"{where} is {value!r}; write {want}")
    return int(value)


def _file_interconnect(fields: dict[str, Any], where: str, names: list[str]) -> Interconnect | None:
    if "interconnect" not in fields and "links" not in fields:
        return None
    settings = dict(
        table_fields(
            fields.get("interconnect", {}),
            (*_LINK_FIELDS, "charging", "overlap"),
            f"{where}: interconnect",
        )
    )
    entries = fields.get("links", [])
    if not isinstance(entries, list):
        raise PartitionError(f"{where}: links is not a list; write [[links]] entries")
    links: dict[tuple[str, str], Link] = {}
    for index, entry in enumerate(entries):
        at = f"{where}: links[{index}]"
        link = dict(table_fields(entry, ("source", "target", *_LINK_FIELDS), at))
        source, target = (link.pop(end, None) for end in ("source", "target"))
        for field, end in (("source", source), ("target", target)):
            if end not in (*names, "host"):
                raise PartitionError(
                    f"{at}: {field} is {end!r}, which is not a device; "
                    f"the devices are {', '.join(names)}"
                )
        if (source, target) in links:
            raise PartitionError(f"{at}: {source!r} to {target!r} is given twice")
        links[str(source), str(target)] = _file_link(link, at)
    overlap = settings.pop("overlap", False)
    if not isinstance(overlap, bool):
        raise PartitionError(f"{where}: interconnect: overlap is {overlap!r}; write true or false")
    charging = settings.pop("charging", "peer_to_peer")
    default = _file_link(settings, f"{where}: interconnect")
    try:
        return Interconnect(
            default=default,
            links=links,
            charging=charging,
            overlap=overlap,
        )
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}") from None


def _file_link(fields: dict[str, Any], where: str) -> Link:
    example = 'write for example bandwidth = "25GB/s"'
    bandwidth = fields.get("bandwidth", "unlimited")
    if isinstance(bandwidth, str):
        bandwidth = _bandwidth(bandwidth, f"{where}: bandwidth", example)
    try:
        return Link(bandwidth, fields.get("latency_ns", 0))
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}; {example}") from None
