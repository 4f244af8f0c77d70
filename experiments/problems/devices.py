"""Devices of a command, as text for :mod:`solver.model.device_text` or a file."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from experiments.problems.toml_files import read_toml
from solver import DEFAULT_DEVICE_CLASS, Device, Interconnect, Link, PartitionError
from solver.io.files import read_json
from solver.io.json_fields import Name, read_as
from solver.model.device_text import EXAMPLE, check_count, read_devices
from solver.model.devices import Charging
from solver.model.quantities import parse_duration, parse_memory, quantity
from solver.model.text import shown

if TYPE_CHECKING:
    from fx_bridge.costs.device_specs import DeviceSpec

_RATES: Final = ("flops_per_s", "memory_bandwidth_bytes_per_s")


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """Devices in their given order, with interconnect and class speeds.

    The interconnect is None when only memory and classes were given. `specs` has the classes that
    the file defines, without presets.
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


def parse_devices(text: str, named: str = "devices", example: str = EXAMPLE) -> DeviceSet:
    """Read devices from a string, or from the .toml or .json file that it names.

    `text` is the name of a file, or text for :func:`solver.model.device_text.read_devices`, with
    presets as classes; `named` and `example` are as in that function.
    """
    if text.strip().lower().endswith((".toml", ".json")):
        return device_table(device_file(Path(text.strip())), text.strip())
    devices = read_devices(text, named, example)
    for device in devices:
        try:
            _known_class(device.device_class, ())
        except PartitionError as error:
            raise PartitionError(f"{named} {text!r}: {error}") from None
    return DeviceSet(devices)


def parse_link(text: str, named: str = "link") -> Link:
    """Read a link ``BANDWIDTH[,LATENCY]`` such as ``25GB/s,10us``, or ``unlimited``.

    PartitionError calls it `named`, such as the option of a command.
    """
    example = "write for example 25GB/s, or 25GB/s,10us, or unlimited"
    where = f"{named} {text!r}"
    bandwidth, comma, latency = text.partition(",")
    latency_ns = 0
    if comma:
        latency_ns = parse_duration(latency, where, example)
    return Link(_bandwidth(bandwidth, where, example), latency_ns)


def _bandwidth(text: str, where: str, example: str) -> int | None:
    if text.strip().lower() == "unlimited":
        return None
    body, slash, per = text.strip().rpartition("/")
    if not slash or per != "s":
        raise PartitionError(f"{where}: {text.strip()!r} is not a bandwidth; {example}")
    if body.endswith("b") and body[:-1] != body[:-1].lower():
        raise PartitionError(
            f"{where}: {text.strip()!r} may count bits, of which a byte has eight; {example}"
        )
    rate = math.floor(quantity(body, where, "bandwidth", example))
    if rate < 1:
        raise PartitionError(f"{where}: bandwidth is {text.strip()}; {example}")
    return rate


def _presets() -> Mapping[str, DeviceSpec]:
    from fx_bridge.costs.device_presets import DEVICE_SPECS

    return DEVICE_SPECS


def _known_class(name: str, own: Iterable[str]) -> str:
    if name == DEFAULT_DEVICE_CLASS or name in own:
        return name
    presets = _presets()
    if name in presets:
        return name
    close = [preset for preset in presets if name and preset.startswith(name.lower())]
    close = close or difflib.get_close_matches(name.lower(), presets, n=1, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise PartitionError(
        f"device class {name!r} is unknown; {hint}the presets are {', '.join(presets)}; a "
        "file of devices may define others"
    )


# -- files --------------------------------------------------------------------------------


def _speed(value: object, where: str) -> int:
    """Return a speed as a whole number; TOML writes 312e12."""
    speed = read_as(float, value, where)
    if not 1 <= speed < 1e30:
        raise PartitionError(f"{where} is {shown(value)}; write a positive number")
    return int(speed)


def _speeds(value: object, where: str) -> int | dict[str, int]:
    """Return FLOP/s, for all dtypes or by dtype."""
    if isinstance(value, dict) and value:
        from fx_bridge.choices import check_dtypes

        check_dtypes(value, where)
        return {dtype: _speed(rate, f"{where}.{dtype}") for dtype, rate in value.items()}
    return _speed(value, where)


def _whole(value: object, where: str) -> int:
    """Return nanoseconds as a whole number; TOML may write 5e3."""
    return int(read_as(float, value, where))


def _memory(value: Any, where: str) -> Any:
    return parse_memory(value, where, EXAMPLE) if isinstance(value, str) else value


def _rate(value: Any, where: str) -> Any:
    example = 'write for example bandwidth = "25GB/s"'
    return _bandwidth(value, where, example) if isinstance(value, str) else value


@dataclass(frozen=True)
class _Speeds:
    flops_per_s: Annotated[Any, _speeds] = None
    memory_bandwidth_bytes_per_s: Annotated[int | None, _speed] = None
    launch_overhead_ns: Annotated[int | None, _whole] = None
    backward_overhead_ns: Annotated[int | None, _whole] = None
    kernel_launch_ns: Annotated[int | None, _whole] = None
    attention_launch_ns: Annotated[int | None, _whole] = None
    compute_efficiency: float | None = None
    attention_efficiency: float | None = None
    bandwidth_efficiency: float | None = None
    device_type: str | None = None
    attention: Any = None
    source: str | None = None


_SPEED_FIELDS: Final = tuple(entry.name for entry in fields(_Speeds))


@dataclass(frozen=True, kw_only=True)
class _DeviceTable(_Speeds):
    memory: Annotated[int | None, _memory]
    name: Name | None = None
    count: int = 1
    class_: Name | None = None
    is_host: bool = False
    like: Name | None = None


@dataclass(frozen=True)
class _LinkTable:
    bandwidth: Annotated[int | None, _rate] = None
    latency_ns: Any = 0

    @property
    def link(self) -> Link:
        return Link(self.bandwidth, self.latency_ns)

    def __post_init__(self) -> None:
        _ = self.link  # raises if there is none


@dataclass(frozen=True, kw_only=True)
class _LinkBetween(_LinkTable):
    source: str
    target: str


@dataclass(frozen=True)
class _InterconnectTable(_LinkTable):
    charging: Charging = "peer_to_peer"
    overlap: bool = False


@dataclass(frozen=True)
class _Tables:
    """Content of a device file; see docs/devices.md."""

    devices: tuple[_DeviceTable, ...] = ()
    interconnect: _InterconnectTable | None = None
    links: tuple[_LinkBetween, ...] = ()


def device_file(path: Path) -> dict[str, Any]:
    """Return the unchecked content of a .toml or .json file of devices."""
    is_toml = path.suffix.lower() == ".toml"
    return read_toml(path, "a list of devices") if is_toml else read_json(path)


def device_table(data: object, where: str) -> DeviceSet:
    """Read devices from the table of a device file; PartitionError starts with `where`."""
    table: _Tables = read_as(_Tables, data, where)
    if not table.devices:
        raise PartitionError(
            f"{where}: the device list is empty; "
            'give entries under [[devices]], such as memory = "24GiB"'
        )
    specs: dict[str, DeviceSpec] = {}
    devices: list[Device] = []
    for index, entry in enumerate(table.devices):
        at = f"{where}: devices[{index}]"
        check_count(entry.count, at)
        try:
            device_class = _file_class(entry, specs)
            devices += [
                Device(name, entry.memory, device_class, entry.is_host)
                for name in _names(entry, len(devices))
            ]
        except PartitionError as error:
            raise PartitionError(f"{at}: {error}") from None
        check_count(len(devices), where)
    names = [device.name for device in devices]
    for name in names:
        if names.count(name) > 1:
            raise PartitionError(f"{where}: two devices are called {name!r}; name each once")
    return DeviceSet(tuple(devices), _file_interconnect(table, where, names), tuple(specs.items()))


def _names(entry: _DeviceTable, offset: int) -> list[str]:
    if entry.name is None:
        return [f"cuda:{offset + i}" for i in range(entry.count)]
    return [entry.name] if entry.count == 1 else [f"{entry.name}:{i}" for i in range(entry.count)]


def _file_class(entry: _DeviceTable, specs: dict[str, DeviceSpec]) -> str:
    """Return the class of a device, adding it to `specs` if its speeds are given."""
    given = {name: value for name in _SPEED_FIELDS if (value := getattr(entry, name)) is not None}
    if not given and entry.like is None:
        return _known_class(entry.class_ or DEFAULT_DEVICE_CLASS, specs)
    from fx_bridge.costs.device_specs import DeviceSpec

    # Devices of equal speed share a class, and are interchangeable to a solver.
    device_class = entry.class_ or "-".join(
        map(str, (*filter(None, [entry.like]), *given.values()))
    )
    if entry.like is not None:
        if device_class in _presets():
            raise PartitionError(
                f"class {device_class!r} is a preset; give what is like {entry.like!r} a name of "
                "its own"
            )
        source = f"{entry.like}{' with given rates' if given else ''}"
        like = _presets()[_known_class(entry.like, ())]
        spec = replace(like, **{"name": device_class, "source": source, **given})
    else:
        for name in _RATES:
            if name not in given:
                raise PartitionError(
                    f"{name} is missing; give both speeds, or a preset class, or like = a preset "
                    "class whose other numbers hold"
                )
        spec = DeviceSpec(device_class, **given)
    if specs.setdefault(device_class, spec) != spec:
        raise PartitionError(
            f"class {device_class!r} has other speeds above; use another class name"
        )
    return device_class


def _file_interconnect(table: _Tables, where: str, names: list[str]) -> Interconnect | None:
    if table.interconnect is None and not table.links:
        return None
    between = table.interconnect or _InterconnectTable()
    links: dict[tuple[str, str], Link] = {}
    for index, entry in enumerate(table.links):
        at = f"{where}: links[{index}]"
        for field, end in (("source", entry.source), ("target", entry.target)):
            if end not in (*names, "host"):
                raise PartitionError(
                    f"{at}: {field} is {shown(end)}, which is not a device; "
                    f"the devices are {', '.join(names)}"
                )
        if entry.source == entry.target:
            raise PartitionError(
                f"{at}: it leads from {entry.source!r} to itself, where nothing is transferred; "
                "leave it out, or name another device"
            )
        if (entry.source, entry.target) in links:
            raise PartitionError(
                f"{at}: {entry.source!r} to {entry.target!r} is given twice; write it once"
            )
        links[entry.source, entry.target] = entry.link
    return Interconnect(between.link, links, between.charging, between.overlap)


def device_text(device: Device, spec: DeviceSpec) -> str:
    """Return the entry of a device and its speeds in a TOML file, without numbers left out."""
    entry = {"name": device.name, "memory": device.memory_bytes, "class": spec.name}
    entry |= {name: getattr(spec, name) for name in _SPEED_FIELDS}
    lines = (f"{key} = {_toml(value)}" for key, value in entry.items() if value is not None)
    return "\n".join(["[[devices]]", *lines, ""])


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)
