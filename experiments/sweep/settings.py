"""What a sweep is asked for, read from a TOML file that is data and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from experiments.comparison.records import DEFAULT_TIME_LIMIT_S, OWN_PLANNERS
from experiments.planners.registry import check_planner
from experiments.planners.steps import read_steps
from experiments.problems.devices import (
    DEVICE_SECTIONS,
    DeviceSet,
    device_table,
    parse_devices,
    parse_link,
)
from experiments.problems.request import parse_objective
from experiments.problems.toml_files import read_toml, table_fields
from experiments.sweep.sources import ModelSource, read_model
from solver import MEMORY_MODELS, GiB, PartitionError, SolveLimits
from solver.io.files import read_json
from solver.model.checks import check_choice, check_positive
from solver.model.quantities import parse_memory
from solver.model.training import SCHEDULES

T = TypeVar("T")

DERIVED: Final = ("equal", "unequal", "roomy")
"""Devices as :func:`experiments.problems.instances.derived_device_sets` derives them from a
model."""
OWN: Final = "own"
"""The devices that a saved problem, a workload or a generated graph brings."""

NOTHING: Final = "nothing"
"""The entry of ``without`` that leaves out no step."""

_FIELDS: Final = (
    "models",
    "devices",
    "links",
    "objectives",
    "memory_models",
    "planners",
    "seeds",
    "without",
    "chunks",
    "max_devices",
    "schedule",
    "microbatches",
    "limits",
)
_LIMITS: Final = (
    "time_limit_s",
    "memory_limit",
    "workers",
    "deterministic",
    "kill_after_s",
    "prepare_limit_s",
)
_DEVICES_EXAMPLE: Final = 'write "equal", "unequal", "roomy", "own", or devices such as "4x24GiB"'
_GRACE_S: Final = 15.0
_SLOW_WORK: Final = 10
"""By how much seconds of deterministic work may be slower than those of the clock."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """One entry of ``devices``.

    Attributes
    ----------
    name : str
        Under which reports show it.
    written : str or mapping
        `OWN`, one of `DERIVED`, devices as on the command line, or the table of a device file.
    """

    name: str
    written: str | Mapping[str, Any]

    def read(self) -> DeviceSet | None:
        """Return the devices; None where the model decides them."""
        if isinstance(self.written, Mapping):
            return device_table(self.written, f"devices {self.name!r}")
        return None if self.written in (OWN, *DERIVED) else parse_devices(self.written)


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """What one cell may use.

    Attributes
    ----------
    time_limit_s : float
        That the planner is told.
    memory_bytes : int or None
        Resident memory of the process that runs it; None is unlimited.
    workers : int or None
        As in :class:`~solver.model.limits.SolveLimits`.
    deterministic : bool
        As in :class:`~solver.model.limits.SolveLimits`.
    kill_after_s : float
        Of the clock, after which its process is ended.
    prepare_limit_s : float
        The same for building and capturing a model.
    """

    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    memory_bytes: int | None = 8 * GiB
    workers: int | None = None
    deterministic: bool = False
    kill_after_s: float = 2 * DEFAULT_TIME_LIMIT_S + _GRACE_S
    prepare_limit_s: float = 600.0

    def solve_limits(self, seed: int) -> SolveLimits:
        """Return what a planner is told."""
        return SolveLimits(self.time_limit_s, self.workers, seed, self.deterministic)


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What a sweep runs: the product of all that has several entries.

    Attributes
    ----------
    models : tuple of ModelSource
        Zoo names, import strings, files of problems.
    devices : tuple of DeviceChoice
        Empty takes what a model brings, and otherwise derives devices of all kinds.
    links : tuple of str
        For devices that say nothing of their links; empty is PCIe.
    objectives : tuple of tuple of str
        Empty takes what a saved problem has, and otherwise the bottleneck, or with a schedule
        the step.
    memory_models : tuple of str
        Empty takes what a saved problem has, and otherwise inference.
    planners : tuple of str
        Keys of ``PLANNERS``.
    seeds : tuple of int
        Those planners whose answers depend on no seed run once, with seed 0.
    without : tuple of tuple of str
        Steps that planners which prove leave out together; the others run once and leave out none.
    chunks, max_devices, microbatches : int or None
        None leaves a saved problem its own.
    schedule : str or None
        None leaves a saved problem its own.
    limits : SweepLimits
        The same for every cell.
    """

    models: tuple[ModelSource, ...]
    devices: tuple[DeviceChoice, ...] = ()
    links: tuple[str, ...] = ()
    objectives: tuple[tuple[str, ...], ...] = ()
    memory_models: tuple[str, ...] = ()
    planners: tuple[str, ...] = OWN_PLANNERS
    seeds: tuple[int, ...] = (0,)
    without: tuple[tuple[str, ...], ...] = ((),)
    chunks: int | None = None
    max_devices: int | None = None
    schedule: str | None = None
    microbatches: int | None = None
    limits: SweepLimits = field(default_factory=SweepLimits)

    def __post_init__(self) -> None:
        if not self.models:
            raise PartitionError('models is missing; write for example models = ["gpt2"]')
        for what, names in (
            ("models", [model.name for model in self.models]),
            ("devices", [choice.name for choice in self.devices]),
            ("links", self.links),
            ("objectives", [",".join(names) for names in self.objectives]),
            ("memory_models", self.memory_models),
            ("planners", self.planners),
            ("seeds", self.seeds),
            ("without", [",".join(names) or NOTHING for names in self.without]),
        ):
            for name in names:
                if list(names).count(name) > 1:
                    raise PartitionError(
                        f"{what}: {name!r} is given twice; give it once, or another name"
                    )
        if any(choice.written == OWN for choice in self.devices):
            without = [model.name for model in self.models if model.own is None]
            if len(without) == len(self.models):
                raise PartitionError(
                    f"devices: {OWN!r} is for models that bring devices, and none does; "
                    f"{_DEVICES_EXAMPLE}"
                )
            if without and len(self.devices) == 1:
                raise PartitionError(
                    f"devices: model {without[0]!r} brings none of its own; {_DEVICES_EXAMPLE}"
                )


def read_sweep(path: Path, models: Sequence[ModelSource] = ()) -> SweepSettings:
    """Read a sweep.

    Parameters
    ----------
    path : Path
        A TOML file; paths in it begin at its folder.
    models : sequence of ModelSource
        From the command line, besides those of the file.

    Raises
    ------
    PartitionError
        In one line that names the file and the key, and says what is allowed.
    """
    table = table_fields(read_toml(path, "a sweep"), _FIELDS, str(path))
    reader = _Reader(table, str(path), path.parent)
    try:
        return SweepSettings(
            models=(*reader.several("models", reader.model), *models),
            devices=reader.several("devices", reader.device),
            links=reader.several("links", _link),
            objectives=reader.several("objectives", _objective),
            memory_models=reader.several("memory_models", _choice(MEMORY_MODELS)),
            planners=reader.several("planners", _planner) or OWN_PLANNERS,
            seeds=reader.several("seeds", _seed) or (0,),
            without=reader.several("without", _without) or ((),),
            chunks=reader.positive("chunks"),
            max_devices=reader.positive("max_devices"),
            schedule=reader.one("schedule", _choice(SCHEDULES)),
            microbatches=reader.positive("microbatches"),
            limits=reader.limits(),
        )
    except PartitionError as error:
        known = str(error).startswith(str(path))
        raise error if known else PartitionError(f"{path}: {error}") from None


class _Reader:
    """Reads the keys of one table; every message begins with the file and the key."""

    def __init__(self, table: Mapping[str, Any], where: str, folder: Path) -> None:
        self._table = table
        self._where = where
        self._folder = folder

    def several(self, key: str, parse: Callable[[object, str], T]) -> tuple[T, ...]:
        if key not in self._table:
            return ()
        where = f"{self._where}: {key}"
        values = self._table[key]
        if not isinstance(values, list):
            raise PartitionError(f"{where} is {values!r}; write a list, such as [{values!r}]")
        if not values:
            raise PartitionError(f"{where} is empty; write an entry, or leave the key out")
        return tuple(parse(value, f"{where}[{index}]") for index, value in enumerate(values))

    def one(self, key: str, parse: Callable[[object, str], T]) -> T | None:
        if key not in self._table:
            return None
        return parse(self._table[key], f"{self._where}: {key}")

    def positive(self, key: str) -> int | None:
        def parse(value: object, where: str) -> Any:
            check_positive(value, where)
            return value

        return self.one(key, parse)

    def model(self, value: object, where: str) -> ModelSource:
        return read_model(value, where, self._folder)

    def device(self, value: object, where: str) -> DeviceChoice:
        if isinstance(value, dict):
            fields = dict(table_fields(value, ("name", *DEVICE_SECTIONS), where))
            name = fields.pop("name", None)
            if not isinstance(name, str) or not name:
                raise PartitionError(f"{where}: name is {name!r}; give the devices a name")
            device_table(fields, where)
            return DeviceChoice(name, fields)
        if not isinstance(value, str) or not value.strip():
            raise PartitionError(f"{where} is {value!r}; {_DEVICES_EXAMPLE}")
        if value.strip().lower().endswith((".toml", ".json")):
            path = self._folder / value.strip()
            is_toml = path.suffix.lower() == ".toml"
            data = read_toml(path, "a list of devices") if is_toml else read_json(path)
            device_table(data, f"{where}: {path}")
            assert isinstance(data, dict)
            return DeviceChoice(value, data)
        choice = DeviceChoice(value, value)
        try:
            choice.read()
        except PartitionError as error:
            raise PartitionError(f"{where}: {error}, or {', '.join((*DERIVED, OWN))}") from None
        return choice

    def limits(self) -> SweepLimits:
        where = f"{self._where}: limits"
        fields = table_fields(self._table.get("limits", {}), _LIMITS, where)
        for key in ("time_limit_s", "kill_after_s", "prepare_limit_s"):
            value = fields.get(key, 1)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 < value < math.inf:
                raise PartitionError(
                    f"{where}: {key} is {value!r}; write a positive number of seconds, such as 60"
                )
        memory = fields.get("memory_limit", "8GiB")
        if not isinstance(memory, str):
            raise PartitionError(
                f'{where}: memory_limit is {memory!r}; write for example "8GiB", or "unlimited"'
            )
        time_limit_s = float(fields.get("time_limit_s", DEFAULT_TIME_LIMIT_S))
        deterministic = fields.get("deterministic", False)
        slowest_s = time_limit_s * (_SLOW_WORK if deterministic is True else 2) + _GRACE_S
        limits = SweepLimits(
            time_limit_s=time_limit_s,
            memory_bytes=parse_memory(memory, f"{where}: memory_limit", 'write for example "8GiB"'),
            workers=fields.get("workers"),
            deterministic=deterministic,
            kill_after_s=float(fields.get("kill_after_s", slowest_s)),
            prepare_limit_s=float(fields.get("prepare_limit_s", SweepLimits().prepare_limit_s)),
        )
        try:
            limits.solve_limits(0)
        except PartitionError as error:
            raise PartitionError(f"{where}: {error}") from None
        if limits.kill_after_s < limits.time_limit_s:
            raise PartitionError(
                f"{where}: kill_after_s is {limits.kill_after_s:g}, less than time_limit_s "
                f"{limits.time_limit_s:g}; write more"
            )
        return limits


def _link(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise PartitionError(f'{where} is {value!r}; write for example "25GB/s,10us"')
    _named(where, lambda: parse_link(value))
    return value


def _objective(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise PartitionError(
            f'{where} is {value!r}; write for example "bottleneck", or "bottleneck,latency"'
        )
    return parse_objective(value, where)


def _planner(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise PartitionError(f'{where} is {value!r}; write the name of a planner, such as "auto"')
    return _named(where, lambda: check_planner(value)).name


def _seed(value: object, where: str) -> int:
    _named(where, lambda: SolveLimits(seed=value))  # type: ignore[arg-type]
    assert isinstance(value, int)
    return value


def _without(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise PartitionError(
            f"{where} is {value!r}; write the name of a step, several with commas between them, "
            f'or "{NOTHING}"'
        )
    return () if value.strip() == NOTHING else _named(where, lambda: read_steps([value]))


def _choice(allowed: tuple[str, ...]) -> Callable[[object, str], str]:
    def parse(value: object, where: str) -> str:
        check_choice(value, allowed, where)
        return str(value)

    return parse


def _named(where: str, read: Callable[[], T]) -> T:
    """Return what `read` returns; its message, if it has one, begins with `where`."""
    try:
        return read()
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}") from None
