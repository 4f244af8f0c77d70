"""The manifest of a folder of stage files: the plan, the graph, and a checksum of each file."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from fx_bridge.capture.digest import first_difference, graph_lines, lines_digest
from fx_bridge.capture.graph import CapturedGraph, check_captured
from solver import PartitionError, PartitionPlan
from solver.io.files import load_json
from solver.io.json_fields import check_schema, read_as
from solver.io.json_files import plan_from_json, plan_to_json
from solver.model.quantities import counted
from solver.model.text import shown

MANIFEST: Final = "manifest.json"
SCHEMA: Final = "fxpartition.stages"
_VERSION: Final = 1


def _file_name(value: object, where: str) -> str:
    # A name from a file must not lead out of the folder.
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_]+\.safetensors", value):
        raise PartitionError(f"{where} is {shown(value)}; write a name such as stage_0.safetensors")
    return value


def _sha256(value: object, where: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise PartitionError(f"{where} is {shown(value)}; write 64 hexadecimal digits")
    return value


FileName: TypeAlias = Annotated[str, _file_name]
Sha256: TypeAlias = Annotated[str, _sha256]


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor that views another tensor of the file, as of ``torch.as_strided``, in elements."""

    of: str  # name in the file of the viewed tensor, which has one dimension
    offset: int  # of its first element
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageFile:
    """One stage and its file, in the same folder."""

    position: int  # in the pipeline: chunk x number of devices + rank of the device
    name: str  # of the child of the split, such as ``"submod_0"``
    device: str
    chunk: int  # earlier passes of data through the devices; 0 without interleaving
    file: FileName
    size_bytes: int
    sha256: Sha256
    aliases: Mapping[str, str]
    """Path in the file of each tied tensor, by its other paths in the stage."""
    views: Mapping[str, TensorView]
    """By path: tensors that share memory with others, or are not contiguous."""


@dataclass(frozen=True, slots=True)
class InputsFile:
    """The file of the example inputs, with the structure of :mod:`fx_bridge.checkpoint.inputs`."""

    file: FileName
    size_bytes: int
    sha256: Sha256
    structure: Any


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a folder of stage files."""

    torch_version: str  # of the writer, for information
    model_name: str | None  # as given by the user, for information
    plan: PartitionPlan  # of the split
    graph_sha256: Sha256  # of `nodes`
    nodes: Mapping[str, str]
    """The captured graph; see :func:`fx_bridge.capture.digest.graph_lines`."""
    stages: tuple[StageFile, ...]  # those with operators, in execution order
    inputs: InputsFile | None  # None without example inputs
    constants: tuple[str, ...] = ()  # argument of the capture
    check: bool = False  # argument of the capture

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, the inverse of :meth:`from_dict`."""
        return {
            "schema": SCHEMA,
            "version": _VERSION,
            "torch_version": self.torch_version,
            "model_name": self.model_name,
            "plan": plan_to_json(self.plan),
            "graph_sha256": self.graph_sha256,
            "nodes": dict(self.nodes),
            "stages": [dataclasses.asdict(stage) for stage in self.stages],
            "inputs": None if self.inputs is None else dataclasses.asdict(self.inputs),
            "constants": list(self.constants),
            "check": self.check,
        }

    @classmethod
    def from_dict(cls, data: object) -> Manifest:
        """Build a manifest from plain data of JSON.

        Raises PartitionError, naming a field that is missing, unknown, of the wrong type or
        inconsistent with another.
        """
        fields = check_schema(data, "", SCHEMA, _VERSION)
        manifest: Manifest = read_as(cls, fields, "", {PartitionPlan: plan_from_json})
        _check_agreement(manifest)
        return manifest

    def stage_at(self, position: int) -> StageFile:
        """Return the stage at a position of the pipeline.

        Raises PartitionError if there is none, or it has no operators and so no file.
        """
        for stage in self.stages:
            if stage.position == position:
                return stage
        positions = ", ".join(str(stage.position) for stage in self.stages)
        raise PartitionError(
            f"there is no stage file for position {position}; the positions are {positions}"
        )


def position_of(plan: PartitionPlan, stage: int) -> int:
    """Return the pipeline position of a stage of `plan`."""
    ranks = {device: rank for rank, device in enumerate(plan.device_order)}
    there = plan.stages[stage]
    return there.chunk * len(ranks) + ranks[there.device]


def load_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a folder written by ``save_stages``.

    The stage files themselves are not read; ``load_stage_weights`` checks each that it reads.

    Raises PartitionError if there is none, or it is invalid: the file and the field are named.
    """
    path = Path(folder) / MANIFEST
    if not path.exists():
        raise PartitionError(
            f"{folder} has no {MANIFEST}: it is no folder of stage files, or writing it was "
            "interrupted; write it with fxpartition split --out"
        )
    return load_json(path, Manifest.from_dict)


def check_manifest(manifest: Manifest, captured: CapturedGraph) -> None:
    """Raise PartitionError unless the stage files are of the graph of `captured`.

    The message names the first difference: a node, its target and arguments, its shape and dtype.
    """
    check_captured(captured, "compare", "check_manifest(manifest, capture(model, args))")
    difference = first_difference(manifest.nodes, graph_lines(captured))
    if difference:
        raise PartitionError(
            f"the stage files are of another graph: {difference}; give the model and the example "
            "inputs that were split, or split this model anew"
        )


def check_plan(manifest: Manifest, plan: PartitionPlan) -> None:
    """Raise PartitionError, naming the first difference, unless the files are of `plan`."""
    if plan.device_order != manifest.plan.device_order:
        there, here = (", ".join(each.device_order) for each in (manifest.plan, plan))
        raise PartitionError(
            f"the stage files were split over {there}, but the plan uses {here}; give the plan "
            "that the files were written with, or split anew"
        )
    for name in {**manifest.plan.assignment, **plan.assignment}:
        places = [
            str(each.stage_of(name)) if name in each.assignment else None
            for each in (manifest.plan, plan)
        ]
        if places[0] != places[1]:
            texts = ["nowhere" if place is None else f"on {place}" for place in places]
            raise PartitionError(
                f"the stage files were written with another plan: operator {name!r} is {texts[0]} "
                f"there but {texts[1]} in the plan; give the plan that the files were written "
                "with, or split anew"
            )


def check_file(folder: Path, file: str, size_bytes: int, sha256: str) -> Path:
    """Return the path of a file; raise PartitionError if it differs from the manifest."""
    path = folder / file
    try:
        found_bytes = path.stat().st_size
        if found_bytes != size_bytes:
            raise PartitionError(
                f"{path} has {counted(found_bytes, 'byte')} but the manifest says {size_bytes:,}: "
                "it is another file or cut off; copy it anew, or write the folder again"
            )
        found = file_sha256(path)
    except FileNotFoundError:
        raise PartitionError(
            f"there is no file {path}, which the manifest names; copy it there, or write the "
            "folder again"
        ) from None
    except OSError as error:
        raise PartitionError(
            f"cannot read {path}: {error.strerror}; make it a readable file"
        ) from None
    if found != sha256:
        raise PartitionError(
            f"{path} was altered: its SHA-256 is {found[:12]}… but the manifest says "
            f"{sha256[:12]}…; copy it anew, or write the folder again"
        )
    return path


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_agreement(manifest: Manifest) -> None:
    """Raise PartitionError unless the fields of a manifest are consistent."""
    if lines_digest(manifest.nodes) != manifest.graph_sha256:
        raise PartitionError("graph_sha256 is not that of nodes; one of them was altered")
    plan = manifest.plan
    for name in plan.assignment:
        if name not in manifest.nodes:
            raise PartitionError(f"plan: {name!r} is not one of the nodes")
    if len(manifest.stages) != len(plan.stages):
        raise PartitionError(
            f"stages has {counted(len(manifest.stages), 'entry', 'entries')}, but the plan has "
            f"{counted(len(plan.stages), 'stage')}"
        )
    for index, (entry, stage) in enumerate(zip(manifest.stages, plan.stages, strict=True)):
        expected = {"device": stage.device, "chunk": stage.chunk}
        for name, value in {**expected, "position": position_of(plan, index)}.items():
            found = getattr(entry, name)
            if found != value:
                raise PartitionError(
                    f"stages[{index}]: {name} is {shown(found)}; the plan says {value!r}"
                )
