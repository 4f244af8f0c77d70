"""Models of a sweep, as plain data for jobs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from experiments.problems.generators import GeneratorSettings, generate_problem
from experiments.workloads.catalogue import PREFIX, workload_path
from experiments.workloads.fields import InstanceSettings
from experiments.workloads.reader import instance_from_json
from experiments.zoo.models import SAVED_PROBLEM, ZOO
from solver import PartitionError, PartitionProblem
from solver.io.files import read_json
from solver.io.json_fields import Name, read_as
from solver.model.checks import did_you_mean
from solver.model.text import shown

_EXAMPLE: Final = 'write a zoo name such as "gpt2", a saved "problem.json", or a generator'


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model of a sweep, of the kind ``"zoo"``, ``"code"``, ``"file"`` or ``"generator"``.

    Code is an import string or a ``*.pt2`` file, from the command line alone. A file has its
    content as JSON in `text`; files and generators have plain settings, and in `own` their problem
    with its own devices.
    """

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str = field(default="", repr=False)
    own: PartitionProblem | None = field(default=None, repr=False, compare=False)

    @property
    def is_code(self) -> bool:
        """True for the user's own code, which may change at any time."""
        return self.kind == "code"

    def identity(self) -> dict[str, Any]:
        """Return the identity of this model as plain data, with a digest of its file."""
        digest = hashlib.sha256(self.text.encode("utf-8")).hexdigest()
        data = self.to_json()
        del data["text"]
        return {**data, "text_digest": digest}

    def to_json(self) -> dict[str, Any]:
        """Return the model as plain data; :meth:`from_json` inverts it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "settings": dict(self.settings),
            "text": self.text,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelSource:
        """Return the model of :meth:`to_json`."""
        source = cls(data["name"], data["kind"], data["settings"], data["text"])
        if source.kind == "file":
            return _file_source(source.name, source.settings, source.text)
        if source.kind == "generator":
            return _generator_source(source.name, source.settings)
        return source


def read_model(
    value: object, where: str, folder: Path, *, may_run_code: bool = False
) -> ModelSource:
    """Read one entry of ``models``, or the option ``--model``.

    Relative paths begin at `folder`. Only where it `may_run_code` the entry may be an import string
    or a ``*.pt2`` file.
    """
    if isinstance(value, dict):
        if "generate" in value:
            return _read_generator(value, where)
        return _read_file(value, where, folder)
    if not isinstance(value, str) or not value:
        raise PartitionError(f"{where} is {shown(value)}; {_EXAMPLE}")
    if value in ZOO:
        return ModelSource(value, "zoo")
    if value.startswith(PREFIX) or value.lower().endswith(SAVED_PROBLEM):
        return _read_file({"file": value}, where, folder)
    if value.lower().endswith(".pt2") or ":" in value:
        if may_run_code:
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise PartitionError(f"{where} is not UTF-8; give it another name") from None
            return ModelSource(value, "code")
        raise PartitionError(
            f"{where}: {value!r} runs code, which no file may name; give it on the command line: "
            f"--model {value}"
        )
    hint = did_you_mean(value, ZOO, f"the zoo has {', '.join(ZOO)}")
    raise PartitionError(f"{where}: model {value!r} is unknown; {hint}")


@dataclass(frozen=True)
class _FileTable:
    file: Name
    name: Name | None = None
    communication_scale: Any = None
    no_host: bool = False
    no_replicas: bool = False


def _read_file(table: dict[str, Any], where: str, folder: Path) -> ModelSource:
    asked: _FileTable = read_as(_FileTable, table, where)
    path = asked.file
    settings = {"communication_scale": asked.communication_scale, "with_host": not asked.no_host}
    if asked.no_replicas:
        settings["with_replicas"] = False
    try:
        data = read_json(workload_path(path) if path.startswith(PREFIX) else folder / path)
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}") from None
    try:
        return _file_source(asked.name or path, settings, json.dumps(data))
    except PartitionError as error:
        raise PartitionError(f"{where}: {path}: {error}") from None


def _file_source(name: str, settings: Mapping[str, Any], text: str) -> ModelSource:
    own = instance_from_json(json.loads(text), InstanceSettings(**settings))
    return ModelSource(name, "file", settings, text, own)


@dataclass(frozen=True, kw_only=True)
class _GeneratorTable(GeneratorSettings):
    generate: str
    name: Name | None = None
    devices: int = 8
    unequal: bool = False
    slack: float = 15.0


def _read_generator(table: dict[str, Any], where: str) -> ModelSource:
    asked: _GeneratorTable = read_as(_GeneratorTable, table, where)
    given = [field.name for field in fields(asked) if field.name in table]
    settings = {name: table[name] for name in given if name != "name"}
    words = (f"{name}={settings[name]}" for name in given if name not in ("generate", "name"))
    try:
        return _generator_source(asked.name or " ".join([asked.generate, *words]), settings)
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}") from None


def _generator_source(name: str, settings: Mapping[str, Any]) -> ModelSource:
    asked = _GeneratorTable(**settings)
    own = generate_problem(
        asked.generate, asked, asked.devices, slack_percent=asked.slack, unequal=asked.unequal
    )
    return ModelSource(name, "generator", settings, own=own)
