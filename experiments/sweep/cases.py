"""Cases and cells of a sweep, and the keys under which they are stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from itertools import product
from typing import Any

from experiments.comparison.records import CaseKey
from experiments.planners.registry import is_own, own_planner
from experiments.planners.task import PlannerSpec
from experiments.problems.hosts import MEMORY_MODEL, OBJECTIVE
from experiments.problems.instances import DERIVED
from experiments.sweep.settings import OWN, DeviceChoice, SweepLimits, SweepSettings
from experiments.sweep.sources import ModelSource
from solver import Pipeline


def content_key(data: object) -> str:
    """Return the SHA-256 of plain data in hexadecimal, independent of the order of mappings."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def spelled_out(value: object) -> Any:
    """Return a value as plain data for :func:`content_key`, with fields that its repr omits."""
    if is_dataclass(value):
        own = {entry.name: spelled_out(getattr(value, entry.name)) for entry in fields(value)}
        return [type(value).__name__, own]
    if isinstance(value, Mapping):
        pairs = [[spelled_out(key), spelled_out(each)] for key, each in value.items()]
        return sorted(pairs, key=json.dumps)
    if isinstance(value, Set):
        return sorted(map(spelled_out, value), key=json.dumps)
    if isinstance(value, (tuple, list)):
        return [spelled_out(each) for each in value]
    return value if value is None or isinstance(value, (str, int, float)) else repr(value)


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """Request for the problem of one case, with devices as named in the sweep's file.

    `link` is None for devices with their own links, and for PCIe. Unset fields of the pipeline, and
    None for the recomputation rule in training, keep those of a saved problem.
    """

    key: CaseKey
    devices: DeviceChoice
    link: str | None = None
    pipeline: Pipeline = field(default_factory=Pipeline)
    recompute: str | None = None
    host: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the request as plain data; :meth:`from_json` inverts it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseRequest:
        """Return the request of :meth:`to_json`."""
        model, device_set, objective, memory_model = data["key"]
        key = CaseKey(model, device_set, tuple(objective), memory_model)
        devices = DeviceChoice(**data["devices"])
        pipeline = Pipeline(**data["pipeline"])
        return cls(key, devices, data["link"], pipeline, data["recompute"], data["host"])


def case_requests(settings: SweepSettings, source: ModelSource) -> tuple[CaseRequest, ...]:
    """Return the cases of one model, in the order of the settings."""
    own = source.own
    choices = settings.devices
    if not choices:
        names = DERIVED if own is None else (OWN,)
        choices = tuple(DeviceChoice(name, name) for name in names)
    objectives, memory_models = settings.objectives, settings.memory_models
    if settings.host is not None:
        objectives, memory_models = objectives or (OBJECTIVE,), memory_models or (MEMORY_MODEL,)
    if not objectives and settings.schedule is not None:
        objectives = (("step",),)
    if not objectives:
        objectives = (("bottleneck",),) if own is None else (own.objective,)
    if not memory_models:
        memory_models = ("inference",) if own is None else (own.memory_model,)
    return tuple(
        CaseRequest(
            CaseKey(source.name, name, objective, memory_model),
            choice,
            link,
            settings.pipeline,
            settings.recompute if memory_model == "training" else None,
            settings.host,
        )
        for choice in choices
        if choice.written != OWN or own is not None
        for link, name in _links(settings, choice)
        for objective in objectives
        for memory_model in memory_models
    )


def _links(settings: SweepSettings, choice: DeviceChoice) -> Iterator[tuple[str | None, str]]:
    """Yield each link for these devices, with the name of the devices on it."""
    given = choice.read()
    if choice.written == OWN or (given is not None and given.interconnect is not None):
        yield None, choice.name
        return
    if not settings.links:
        yield None, choice.name
    for link in settings.links:
        # A single link is not part of the name.
        yield link, choice.name if len(settings.links) == 1 else f"{choice.name}, {link}"


def case_key(source: ModelSource, request: CaseRequest, versions: Mapping[str, str]) -> str:
    """Return the key of a prepared problem, from its request and the versions."""
    return content_key([source.identity(), request.to_json(), dict(versions)])


@dataclass(frozen=True, slots=True)
class Cell:
    """One planner on one case with one seed.

    `digest` is that of the exact problem. `planner` is a key of ``PLANNERS``, or an import string;
    `source` the model for one that reads it. Its search leaves out the steps `without`. `key` is
    that of problem, planner, seed, steps left out, limits and versions: cells of equal keys share
    one answer.
    """

    request: CaseRequest
    digest: str
    planner: str
    seed: int
    without: tuple[str, ...]
    source: ModelSource | None
    key: str

    @property
    def case(self) -> CaseKey:
        """The key of the cell's case."""
        return self.request.key


def cells_of(
    settings: SweepSettings,
    source: ModelSource,
    request: CaseRequest,
    digest: str,
    specs: Mapping[str, PlannerSpec],
    versions: Mapping[str, str],
) -> Iterator[Cell]:
    """Return the cells of a case, in the order of the settings."""
    for planner in settings.planners:
        spec = own_planner(planner) if is_own(planner) else specs[planner]
        # Models with the same problem may have different answers from a planner that reads them.
        read = source if spec.needs_model or spec.uses_model else None
        seeds = settings.seeds if spec.seeded else (0,)
        for without, seed in product(settings.without if spec.proves else ((),), seeds):
            # Everything that the answer depends on.
            key = content_key(
                {
                    "problem": digest,
                    "planner": planner,
                    "seed": seed,
                    "without": without,
                    "limits": limits_json(settings.limits),
                    "versions": dict(versions),
                    "model": None if read is None else read.identity(),
                    "host": request.host,
                }
            )
            yield Cell(request, digest, planner, seed, without, read, key)


def limits_json(limits: SweepLimits) -> dict[str, Any]:
    """Return the limits that affect an answer, as plain data."""
    data = asdict(limits)
    del data["prepare_limit_s"]
    return data


def settings_json(settings: SweepSettings) -> dict[str, Any]:
    """Return the settings of a sweep as plain data."""
    return {
        **{entry.name: getattr(settings, entry.name) for entry in fields(settings)},
        "models": [source.identity() for source in settings.models],
        "devices": [asdict(choice) for choice in settings.devices],
        "limits": limits_json(settings.limits),
    }
