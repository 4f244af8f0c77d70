"""Measured times of a model's operators on one machine, stored as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from solver import Interconnect, Link, PartitionError
from solver.io.files import read_json, write_text_atomically
from solver.io.json_fields import check_schema, read_as
from solver.model.text import shortened

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.options import Costs

SCHEMA: Final = "fxpartition.profile"
SCHEMA_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured times of a model's operators, and of the link between processes.

    `graph_digest` is :func:`fx_bridge.capture.digest.graph_digest` of the captured graph. With
    `training` backward passes were measured. `threads` are those of each process; `processes` and
    `repeats` are as in :func:`experiments.pipelines.profiling.measure_profile`.

    Times of operators are calibrated by factors in thousandths: their sums are the times of the
    generated code. A workspace is the bytes that an operator allocates and releases again. `link`
    was fitted to `link_samples`, bytes and ns of messages.
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
        """Return costs for :func:`fx_bridge.to_digraph`; refuse training that was not measured."""
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
        """Raise PartitionError if the profile is of another graph."""
        from fx_bridge.capture.digest import graph_digest

        if graph_digest(captured) != self.graph_digest:
            raise PartitionError(
                f"the profile is one of another graph ({self.model}); measure this model, with "
                "inputs of this size and the same --constant and --check, by: fxpartition profile"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as plain data with schema and version."""
        return {"schema": SCHEMA, "version": SCHEMA_VERSION, **asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to a JSON file, atomically."""
        write_text_atomically(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile from a JSON file; PartitionError names the file and the field."""
        data = read_json(path)
        try:
            fields = check_schema(data, "", SCHEMA, SCHEMA_VERSION)
            profile: Profile = read_as(cls, fields, "")
        except PartitionError as error:
            raise PartitionError(
                f"{shortened(path)}: {error}; write it again with: fxpartition profile"
            ) from None
        return profile
