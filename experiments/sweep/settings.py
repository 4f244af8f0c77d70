"""Settings of a sweep, read from a TOML file that runs no code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from experiments.comparison.records import DEFAULT_TIME_LIMIT_S, OWN_PLANNERS
from experiments.comparison.settings import default_planners
from experiments.planners.registry import check_planner, is_own
from experiments.planners.steps import check_known, read_steps
from experiments.problems.devices import (
    DeviceSet,
    device_file,
    device_table,
    parse_devices,
    parse_link,
)
from experiments.problems.hosts import parse_host
from experiments.problems.instances import DERIVED
from experiments.problems.request import parse_objective
from experiments.problems.toml_files import read_toml
from experiments.sweep.sources import ModelSource, read_model
from fx_bridge.costs.recompute import RULES
from solver import GiB, PartitionError, Pipeline, SolveLimits
from solver.io.json_fields import Name, Positive, read_as
from solver.model.problem_fields import MemoryModel
from solver.model.quantities import parse_memory
from solver.model.text import shown
from solver.model.training import Schedule

T = TypeVar("T")

OWN: Final = "own"
"""Name of the devices in a saved problem, a workload or a generated graph."""

NOTHING: Final = "nothing"
"""Entry of ``without`` for a search with all steps."""

_DEVICES_EXAMPLE: Final = 'write "equal", "unequal", "roomy", "own", or devices such as "4x24GiB"'
_GRACE_S: Final = 15.0
_SLOW_WORK: Final = 10
"""Wall seconds allowed per second of deterministic work."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """One entry of ``devices``, with its name in reports.

    It is written as `OWN`, one of `DERIVED`, devices as on the command line, or the table of a
    device file.
    """

    name: str
    written: str | Mapping[str, Any]

    def read(self) -> DeviceSet | None:
        """Return the devices; None if they depend on the model."""
        if isinstance(self.written, Mapping):
            return device_table(self.written, f"devices {self.name!r}")
        return None if self.written in (OWN, *DERIVED) else parse_devices(self.written)


def _named(read: Callable[[Any], T]) -> Callable[[Any, str], T]:
    """Return a reader of an entry that prefixes messages of `read` with the entry's place."""

    def reader(value: Any, where: str) -> T:
        try:
            return read(value)
        except PartitionError as error:
            raise PartitionError(f"{where}: {error}") from None

    return reader


def _text(read: Callable[[str], T]) -> Callable[[object, str], T]:
    return lambda value, where: _named(read)(read_as(str, value, where), where)


def _checked(check: Callable[[Any], object]) -> Callable[[Any], Any]:
    def same(value: Any) -> Any:
        check(value)
        return value

    return same


def _seconds(value: object, where: str) -> float:
    seconds = float(read_as(float, value, where))
    if not seconds:
        raise PartitionError(f"{where} is {shown(value)}; write a positive number of seconds")
    return seconds


def _memory(value: object, where: str) -> int | None:
    return parse_memory(read_as(str, value, where), where, 'write for example "8GiB"')


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """Limits of one cell, the table ``limits``.

    The planner is given `time_limit_s`; `memory_limit` is of resident bytes of the cell's process,
    and None unlimited. `workers` and `deterministic` are as in
    :class:`~solver.model.limits.SolveLimits`. After `kill_after_s` wall seconds, or by default
    after more than twice the time limit, the process is ended. `prepare_limit_s` are wall seconds
    for building and capturing a model.
    """

    time_limit_s: Annotated[float, _seconds] = DEFAULT_TIME_LIMIT_S
    memory_limit: Annotated[int | None, _memory] = 8 * GiB
    workers: int | None = None
    deterministic: bool = False
    kill_after_s: Annotated[float | None, _seconds] = None
    prepare_limit_s: Annotated[float, _seconds] = 600.0

    def __post_init__(self) -> None:
        self.solve_limits(0)
        if self.clock_limit_s < self.time_limit_s:
            raise PartitionError(
                f"kill_after_s is {self.kill_after_s:g}, less than time_limit_s "
                f"{self.time_limit_s:g}; write more"
            )

    @property
    def clock_limit_s(self) -> float:
        """Wall seconds after which the process of a cell is ended."""
        slow = _SLOW_WORK if self.deterministic else 2
        return self.kill_after_s or self.time_limit_s * slow + _GRACE_S

    def solve_limits(self, seed: int) -> SolveLimits:
        """Return the limits given to a planner."""
        return SolveLimits(self.time_limit_s, self.workers, seed, self.deterministic)


def _listed(planner: str) -> str:
    """Return the name of a registered planner; refuse the user's own code."""
    if is_own(planner):
        raise PartitionError(
            f"{planner!r} runs code, which no file may name; give it on the command line: "
            f"--planner {planner}"
        )
    return check_planner(planner).name


_link = _text(_checked(parse_link))
_host = _text(_checked(parse_host))
_planner = _text(_listed)
_without = _text(lambda names: () if names.strip() == NOTHING else read_steps([names]))
_recompute = _text(lambda rule: check_known(rule, RULES, "rule"))
_seed = _named(_checked(lambda seed: SolveLimits(seed=seed)))


def _objective(value: object, where: str) -> tuple[str, ...]:
    return parse_objective(read_as(str, value, where), where)


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """Settings of a sweep, which runs the product of all tuples.

    Models are zoo names, import strings, and files of problems. A saved problem keeps its own
    value where a tuple is empty, or another setting None; other models have all derived sets of
    devices, PCIe for devices without their own links, the step with a schedule, else the
    bottleneck, and inference. Planners are keys of ``PLANNERS``, and import strings from the
    command line; those whose answers depend on no seed run once, with seed 0. Proving planners
    leave out each set of steps in `without`; others run once. `recompute` is a rule, one of
    ``RULES`` of :mod:`fx_bridge.costs.recompute`, in training.
    """

    models: tuple[ModelSource, ...]
    devices: tuple[DeviceChoice, ...] = ()
    links: tuple[Annotated[str, _link], ...] = ()
    objectives: tuple[Annotated[tuple[str, ...], _objective], ...] = ()
    memory_models: tuple[MemoryModel, ...] = ()
    planners: tuple[Annotated[str, _planner], ...] = OWN_PLANNERS
    seeds: tuple[Annotated[int, _seed], ...] = (0,)
    without: tuple[Annotated[tuple[str, ...], _without], ...] = ((),)
    chunks: Positive | None = None
    max_devices: Positive | None = None
    schedule: Schedule | None = None
    microbatches: Positive | None = None
    recompute: Annotated[str | None, _recompute] = None
    host: Annotated[str, _host] | None = None
    limits: SweepLimits = field(default_factory=SweepLimits)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline settings of all cases."""
        return Pipeline(self.schedule, self.microbatches, self.chunks, self.max_devices)

    def __post_init__(self) -> None:
        if not self.models:
            raise PartitionError('models is missing; write for example models = ["gpt2"]')
        for key, names in (
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
                        f"{key}: {name!r} is given twice; give it once, or another name"
                    )
        self._check_own_devices()
        if self.recompute not in (None, "none"):
            self._check_training()

    def _check_own_devices(self) -> None:
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

    def _check_training(self) -> None:
        own = [model.own.memory_model for model in self.models if model.own is not None]
        if "training" not in (self.memory_models or own):
            raise PartitionError(
                f"recompute is {shown(self.recompute)}, and no case is of training; write "
                'memory_models = ["training"], or leave it out'
            )


def read_sweep(
    path: Path, models: Sequence[ModelSource] = (), planners: Sequence[str] = ()
) -> SweepSettings:
    """Read a sweep from a TOML file; its folder is the base of paths in it.

    Models and planners are additions from the command line, import strings among them. Errors name
    the file, the key and its allowed values.
    """
    table = read_toml(path, "a sweep")
    folder = path.parent

    def all_models(value: object, where: str) -> tuple[ModelSource, ...]:
        entry = Annotated[ModelSource, lambda value, where: read_model(value, where, folder)]
        return (*read_as(tuple[entry, ...], value, where), *models)

    settings: SweepSettings = read_as(
        SweepSettings,
        {"models": [], **table},
        str(path),
        {
            tuple[ModelSource, ...]: all_models,
            DeviceChoice: lambda value, where: _read_devices(value, where, folder),
        },
    )
    for key, value in table.items():
        if value == []:
            raise PartitionError(f"{path}: {key} is empty; write an entry, or leave the key out")
    own = settings.planners
    if settings.host is not None and "planners" not in table:
        own = default_planners(with_model=True, host=True)
    asked = dict.fromkeys((*own, *planners))
    return replace(settings, planners=tuple(asked))


def _read_devices(value: object, where: str, folder: Path) -> DeviceChoice:
    if isinstance(value, dict):
        fields = dict(value)
        name = read_as(Name, fields.pop("name", None), f"{where}: name")
        device_table(fields, where)
        return DeviceChoice(name, fields)
    if not isinstance(value, str) or not value.strip():
        raise PartitionError(f"{where} is {shown(value)}; {_DEVICES_EXAMPLE}")
    if value.strip().lower().endswith((".toml", ".json")):
        path = folder / value.strip()
        data = _named(device_file)(path, where)
        device_table(data, f"{where}: {path}")
        return DeviceChoice(value, data)
    choice = DeviceChoice(value, value)
    try:
        choice.read()
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}, or {', '.join((*DERIVED, OWN))}") from None
    return choice
