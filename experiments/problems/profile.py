"""What the operators of a model take on one machine, as it was measured and is kept as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from solver import Interconnect, Link, PartitionError
from solver.io.files import read_json, write_text_atomically
from solver.io.json_fields import check_schema

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.options import Costs

SCHEMA: Final = "fxpartition.profile"
SCHEMA_VERSION: Final = 1
_MEASURED: Final = ("forward_ns", "backward_ns", "workspace_bytes", "backward_workspace_bytes")
_WRONG: Final = "write it again with: fxpartition profile"


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured times of a model's operators, and of the link between processes.

    Attributes
    ----------
    model : str
        As it was named.
    graph_digest : str
        Of the captured graph; see :func:`fx_bridge.capture.digest.graph_digest`.
    training : bool
        Whether backward passes were measured.
    threads : int
        Of each process.
    processes, repeats : int
        See :func:`experiments.pipelines.profiling.measure_profile`.
    machine : mapping of str to str
        Where it was measured, for people.
    forward_ns, backward_ns : mapping of str to int
        By operator, calibrated: their sums are the times of the generated code.
    workspace_bytes, backward_workspace_bytes : mapping of str to int
        What operators allocate and release before they are done, by operator.
    forward_permille, backward_permille : int
        What calibration multiplied times by, in thousandths.
    link : Link
        Latency and bandwidth between two processes.
    link_samples : tuple of (int, int)
        Bytes of a message, nanoseconds of its way; what `link` was fitted to.
    """

    model: str
    graph_digest: str
    training: bool
    threads: int
    processes: int
    repeats: int
    machine: Mapping[str, str]
    forward_ns: Mapping[str, int]
    backward_ns: Mapping[str, int]
    workspace_bytes: Mapping[str, int]
    backward_workspace_bytes: Mapping[str, int]
    forward_permille: int
    backward_permille: int
    link: Link
    link_samples: tuple[tuple[int, int], ...]

    @property
    def interconnect(self) -> Interconnect:
        """The measured link between every two devices, values relayed as pipelines do."""
        return Interconnect(default=self.link, charging="relayed")

    def costs(self, training: bool) -> Costs:
        """Return what operators cost, as :func:`fx_bridge.to_digraph` takes it.

        Raises
        ------
        PartitionError
            If training needs backward passes that were not measured.
        """
        if training and not self.training:
            raise PartitionError(
                f"the profile of {self.model} has no backward passes; measure it with --training"
            )
        from fx_bridge.options import Costs

        return Costs(
            latency_ns=self.forward_ns,
            backward_latency_ns=self.backward_ns if training else None,
            workspace_bytes=self.workspace_bytes,
            backward_workspace_bytes=self.backward_workspace_bytes if training else None,
        )

    def check(self, captured: CapturedGraph) -> None:
        """Raise PartitionError unless it is the profile of this graph."""
        from fx_bridge.capture.digest import graph_digest

        if graph_digest(captured) != self.graph_digest:
            raise PartitionError(
                f"the profile is one of another graph ({self.model}); measure this model, with "
                "inputs of this size, by: fxpartition profile"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data; :meth:`from_dict` inverts it."""
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "model": self.model,
            "graph_digest": self.graph_digest,
            "training": self.training,
            "threads": self.threads,
            "processes": self.processes,
            "repeats": self.repeats,
            "machine": dict(self.machine),
            "forward_permille": self.forward_permille,
            "backward_permille": self.backward_permille,
            "operators": {
                name: {what: getattr(self, what)[name] for what in _MEASURED}
                for name in self.forward_ns
            },
            "link": {
                "bandwidth_bytes_per_s": self.link.bandwidth_bytes_per_s,
                "latency_ns": self.link.latency_ns,
                "samples": [list(sample) for sample in self.link_samples],
            },
        }

    @classmethod
    def from_dict(cls, data: object) -> Profile:
        """Build one from plain data, as JSON holds it.

        Raises
        ------
        PartitionError
            Naming the field that is missing or of the wrong kind.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise PartitionError(f"this is no {SCHEMA} file; {_WRONG}")
        try:
            check_schema(data, "the content", SCHEMA, SCHEMA_VERSION)
        except PartitionError as error:
            raise PartitionError(f"{error}; {_WRONG}") from None
        for name in ("threads", "processes", "repeats", "forward_permille", "backward_permille"):
            _natural(data.get(name), name)
        for name, kind in (("model", str), ("graph_digest", str), ("training", bool)):
            if not isinstance(data.get(name), kind):
                raise PartitionError(
                    f"{name} is {data.get(name)!r}, not a {kind.__name__}; {_WRONG}"
                )
        operators = _object(data.get("operators"), "operators")
        measured: dict[str, dict[str, int]] = {what: {} for what in _MEASURED}
        for name, entry in operators.items():
            where = f"operators[{name!r}]"
            for what, found in measured.items():
                found[name] = _natural(_object(entry, where).get(what), f"{where}.{what}")
        link = _object(data.get("link"), "link")
        samples = link.get("samples")
        if not isinstance(samples, list) or any(
            not isinstance(pair, list) or len(pair) != 2 for pair in samples
        ):
            raise PartitionError(f"link.samples are no pairs of numbers; {_WRONG}")
        rate, latency_ns = link.get("bandwidth_bytes_per_s"), link.get("latency_ns")
        given: dict[str, Any] = {
            **{name: data[name] for name in {field.name for field in fields(cls)} & set(data)},
            **measured,
            "machine": {str(k): str(v) for k, v in _object(data.get("machine"), "machine").items()},
            "link": Link(rate, _natural(latency_ns, "link.latency_ns")),
            "link_samples": tuple(
                (_natural(size, "link.samples"), _natural(time_ns, "link.samples"))
                for size, time_ns in samples
            ),
        }
        return cls(**given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a JSON file, whole or not at all."""
        write_text_atomically(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read one from a JSON file; PartitionError names the file and the field."""
        data = read_json(path)
        try:
            return cls.from_dict(data)
        except PartitionError as error:
            raise PartitionError(f"{path}: {error}") from None


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PartitionError(f"{what} is {value!r}, not an object with fields; {_WRONG}")
    return value


def _natural(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PartitionError(f"{what} is {value!r}, not a whole number; {_WRONG}")
    return value
