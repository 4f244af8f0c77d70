"""The cases and cells of a sweep: what is asked of each, and the keys under which they are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from itertools import product
from typing import Any

from experiments.comparison.records import CaseKey
from experiments.planners.own import is_own, own_planner
from experiments.planners.task import PlannerSpec
from experiments.sweep.settings import DERIVED, OWN, DeviceChoice, SweepLimits, SweepSettings
from experiments.sweep.sources import ModelSource
from solver import Pipeline


def content_key(data: object) -> str:
    """Return the SHA-256 of plain data in hexadecimal, whatever the order of its mappings."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def spelled_out(value: object) -> Any:
    """Return a value as plain data for :func:`content_key`, with all that a repr leaves out."""
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
    """What a sweep asks of the problem of one case.

    Attributes
    ----------
    key : CaseKey
        What tells cases apart.
    devices : DeviceChoice
        As the sweep's file names them.
    link : str or None
        None where the devices say what links they have, and for PCIe.
    pipeline : Pipeline
        What it leaves open a saved problem says itself.
    recompute : str or None
        The rule for what runs again in training; None leaves a saved problem its own.
    """

    key: CaseKey
    devices: DeviceChoice
    link: str | None = None
    pipeline: Pipeline = field(default_factory=Pipeline)
    recompute: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what is asked, as plain data; :meth:`from_json` inverts it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseRequest:
        """Return the request that a job carries."""
        model, device_set, objective, memory_model = data["key"]
        key = CaseKey(model, device_set, tuple(objective), memory_model)
        devices = DeviceChoice(**data["devices"])
        pipeline = Pipeline(**data["pipeline"])
        return cls(key, devices, data["link"], pipeline, data["recompute"])


def case_requests(settings: SweepSettings, source: ModelSource) -> tuple[CaseRequest, ...]:
    """Return the cases of one model, in the order of the settings."""
    own = source.own
    choices = settings.devices
    if not choices:
        names = DERIVED if own is None else (OWN,)
        choices = tuple(DeviceChoice(name, name) for name in names)
    objectives = settings.objectives
    if not objectives and settings.schedule is not None:
        objectives = (("step",),)
    if not objectives:
        objectives = (("bottleneck",),) if own is None else (own.objective,)
    memory_models = settings.memory_models
    if not memory_models:
        memory_models = ("inference",) if own is None else (own.memory_model,)
    return tuple(
        CaseRequest(
            CaseKey(source.name, name, objective, memory_model),
            choice,
            link,
            settings.pipeline,
            settings.recompute if memory_model == "training" else None,
        )
        for choice in choices
        if choice.written != OWN or own is not None
        for link, name in _links(settings, choice)
        for objective in objectives
        for memory_model in memory_models
    )


def _links(settings: SweepSettings, choice: DeviceChoice) -> Iterator[tuple[str | None, str]]:
    """Return every link for these devices, and the name of the devices with it."""
    given = choice.read()
    if choice.written == OWN or (given is not None and given.interconnect is not None):
        yield None, choice.name
        return
    if not settings.links:
        yield None, choice.name
    for link in settings.links:
        # Where there is but one, it tells nothing apart.
        yield link, choice.name if len(settings.links) == 1 else f"{choice.name}, {link}"


def case_key(source: ModelSource, request: CaseRequest, versions: Mapping[str, str]) -> str:
    """Return the key of a prepared problem: what was asked, and what made it."""
    return content_key([source.identity(), request.to_json(), dict(versions)])


@dataclass(frozen=True, slots=True)
class Cell:
    """One planner on one case with one seed.

    Attributes
    ----------
    request : CaseRequest
        The case.
    digest : str
        Of the exact problem.
    planner : str
        A key of ``PLANNERS``, or an import string.
    seed : int
        That the planner is told.
    without : tuple of str
        Steps that the search leaves out.
    source : ModelSource or None
        Of a planner that reads the model.
    key : str
        Of problem, planner, seed, steps left out, limits and versions: cells of equal keys have
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
        """The case that it belongs to."""
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
        # A planner that reads the model may answer otherwise for another of the same problem.
        read = source if spec.needs_model or spec.uses_model else None
        seeds = settings.seeds if spec.seeded else (0,)
        for without, seed in product(settings.without if spec.proves else ((),), seeds):
            key = cell_key(
                problem=digest,
                planner=planner,
                seed=seed,
                without=list(without),
                limits=limits_json(settings.limits),
                versions=dict(versions),
                model=None if read is None else read.identity(),
            )
            yield Cell(request, digest, planner, seed, without, read, key)


def cell_key(
    *,
    problem: str,
    planner: str,
    seed: int,
    without: Sequence[str],
    limits: Mapping[str, Any],
    versions: Mapping[str, str],
    model: Mapping[str, Any] | None,
) -> str:
    """Return the key of a cell: all that its answer depends on; `model` where it is read."""
    return content_key(
        {
            "problem": problem,
            "planner": planner,
            "seed": seed,
            "without": without,
            "limits": limits,
            "versions": versions,
            "model": model,
        }
    )


def limits_json(limits: SweepLimits) -> dict[str, Any]:
    """Return what an answer depends on of limits, as plain data."""
    data = asdict(limits)
    del data["prepare_limit_s"]
    return data


def settings_json(settings: SweepSettings) -> dict[str, Any]:
    """Return what a sweep was asked, as plain data that says so and runs nothing."""
    return {
        **{entry.name: getattr(settings, entry.name) for entry in fields(settings)},
        "models": [source.identity() for source in settings.models],
        "devices": [asdict(choice) for choice in settings.devices],
        "limits": limits_json(settings.limits),
    }
