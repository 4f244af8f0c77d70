"""A folder with one safetensors file for every stage of a split, loaded by its rank.

It also holds the example inputs and the ``manifest.json`` of :mod:`fx_bridge.checkpoint.manifest`.
Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import fx, nn

from fx_bridge.capture.digest import graph_lines, lines_digest
from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.checkpoint.folders import STAGING, made_folder, replaced_together
from fx_bridge.checkpoint.inputs import flat_tensors, with_tensors
from fx_bridge.checkpoint.manifest import (
    MANIFEST,
    SCHEMA,
    InputsFile,
    Manifest,
    StageFile,
    check_file,
    file_sha256,
    load_manifest,
    position_of,
)
from fx_bridge.checkpoint.tensors import (
    Slot,
    check_fits,
    made_of,
    parts_in,
    restored,
    slots_of,
    stored,
)
from solver import PartitionError
from solver.io.files import read_json, write_text_atomically

_OWNED: Final = re.compile(r"stage_\d+\.safetensors|inputs\.safetensors")
_INPUTS: Final = "inputs.safetensors"


def save_stages(
    split: fx.GraphModule,
    captured: CapturedGraph,
    folder: str | os.PathLike[str],
    *,
    with_inputs: bool = True,
    model_name: str | None = None,
) -> Manifest:
    """Write the tensors of every stage of a split to a file of its own, and a manifest.

    Parameters
    ----------
    split : torch.fx.GraphModule
        Of `captured`, from :func:`~fx_bridge.split.by_plan.split_by_plan`.
    captured : CapturedGraph
        The graph that was split; it holds the example inputs.
    folder : path
        Made if missing. Files of an earlier call are replaced; otherwise it must be empty.
    with_inputs : bool
        Also save the example inputs of `captured`, so that ranks need not make them.
    model_name : str, optional
        For information.

    Returns
    -------
    Manifest
        As it was written.

    Raises
    ------
    PartitionError
        In one line: a tensor has no values or safetensors cannot hold it, the inputs are no plain
        data, or the folder cannot be written or holds other files.

    Notes
    -----
    ``stage_<position>.safetensors`` holds every parameter, buffer and constant of the stage under
    its path in the stage. Wrappers, such as quantised weights, are stored as their parts:
    ``0.weight.qdata``. Tied tensors are written once in each stage that has them. All files are
    written to a temporary folder within `folder` and renamed once all are complete, the manifest
    last: an interrupted run leaves the old files, or a folder without manifest, which no reader
    accepts.

    Examples
    --------
    >>> import tempfile
    >>> from fx_bridge import capture, split_by_plan
    >>> from solver import PartitionPlan
    >>> captured = capture(torch.nn.Sequential(torch.nn.Linear(4, 4)), (torch.ones(1, 4),))
    >>> split = split_by_plan(captured, PartitionPlan({"linear": "cpu"}, ("cpu",)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = save_stages(split, captured, folder)
    >>> manifest.stages[0].file
    'stage_0.safetensors'
    """
    if not isinstance(split, fx.GraphModule) or "plan" not in split.meta:
        raise PartitionError(
            "the module has no stages; give what split_by_plan or result.split() returned"
        )
    lines = graph_lines(captured)
    for name in split.meta["plan"].assignment:
        if name not in lines:
            raise PartitionError(
                f"the split is one of another graph: it has an operator {name!r}; give the "
                "captured graph that was split"
            )
    for node in split.graph.find_nodes(op="get_attr"):
        raise PartitionError(
            f"the graph returns {str(node.target)!r} itself, which is in no stage; let the model "
            "return a copy of it, such as weight.clone()"
        )
    target = check_folder(folder)
    with replaced_together(target, MANIFEST, _OWNED) as staging:
        manifest = _write(split, captured, lines, staging, with_inputs, model_name)
    write_text_atomically(target / MANIFEST, json.dumps(manifest.to_dict(), indent=1) + "\n")
    return manifest


def load_stage_weights(
    stage: nn.Module,
    folder: str | os.PathLike[str],
    position: int,
    device: str | torch.device = "cpu",
) -> int:
    """Load the tensors of a stage from its file to a device.

    No other file is read. The stage may be on any device, including the meta device.

    Parameters
    ----------
    stage : torch.nn.Module
        The child of a split of the same graph by the same plan. Every parameter, buffer and
        constant is replaced by a new one with the same ``requires_grad``; tied ones are one object
        again. A submodule that the graph calls as a whole is the model's own, and is filled itself.
    folder : path
        Written by :func:`save_stages`.
    position : int
        Of the stage in the pipeline: chunk x number of devices + rank of the device.
    device : str or torch.device
        Device of the new tensors.

    Returns
    -------
    int
        Bytes of the loaded tensors.

    Raises
    ------
    PartitionError
        In one line: the file is missing or altered, the device is absent, or a tensor differs in
        shape or dtype from that of the file. The stage is then unchanged.
    """
    manifest = load_manifest(folder)
    entry = manifest.stage_at(position)
    path = check_file(Path(folder), entry.file, entry.size_bytes, entry.sha256)
    slots = slots_of(stage)
    tensors = read_tensors(path, device)
    try:
        found = restored(tensors, entry.aliases, entry.views)
        _check_same(slots, found)
    except PartitionError as error:
        raise PartitionError(
            f"{path} does not fit stage {position}: {error}; give the model that was split"
        ) from None
    made: dict[tuple[int, ...], torch.Tensor] = {}
    for name, slot in slots.items():
        parts = tuple(id(found[path]) for path in parts_in({name: slot}))
        if parts not in made:
            made[parts] = made_of(slot, name, found)
        slot.fill(made[parts])
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def load_inputs(folder: str | os.PathLike[str]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the example inputs in a folder of stage files, on the CPU, or None if there are none.

    Raises PartitionError if their file is missing or altered, or the manifest is not valid.
    """
    entry = load_manifest(folder).inputs
    if entry is None:
        return None
    path = check_file(Path(folder), entry.file, entry.size_bytes, entry.sha256)
    try:
        inputs = with_tensors(entry.structure, read_tensors(path, "cpu"))
        if not isinstance(inputs, tuple) or [type(part) for part in inputs] != [tuple, dict]:
            raise PartitionError("structure is no tuple of a tuple and a dict")
    except PartitionError as error:
        raise PartitionError(f"{Path(folder) / MANIFEST}: inputs: {error}") from None
    args, kwargs = inputs
    return args, kwargs


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the path of a folder that :func:`save_stages` may write, made if it is missing.

    Raises PartitionError if it cannot be made or read, or holds anything but stage files.
    """
    target, names = made_folder(folder)
    if MANIFEST in names:
        content = read_json(target / MANIFEST)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise PartitionError(
                f"{folder} has a {MANIFEST} of something else; write another folder"
            )
        return target
    # Leftovers of an interrupted run are overwritten.
    strange = [n for n in names if not _OWNED.fullmatch(n) and not n.startswith(STAGING)]
    if strange:
        raise PartitionError(
            f"{folder} holds other files, such as {strange[0]}; write a new or an empty folder"
        )
    return target


def _write(
    split: fx.GraphModule,
    captured: CapturedGraph,
    lines: Mapping[str, str],
    staging: Path,
    with_inputs: bool,
    model_name: str | None,
) -> Manifest:
    plan = split.meta["plan"]
    stages: list[StageFile] = []
    for index, (name, stage) in enumerate(zip(split.meta["stages"], plan.stages, strict=True)):
        position = position_of(plan, index)
        content = stored(split.get_submodule(name), f"stage {index}")
        file = f"stage_{position}.safetensors"
        size_bytes, sha256 = _write_file(staging / file, content.tensors)
        stages.append(
            StageFile(
                position=position,
                name=name,
                device=stage.device,
                chunk=stage.chunk,
                file=file,
                size_bytes=size_bytes,
                sha256=sha256,
                aliases=content.aliases,
                views=content.views,
            )
        )
    inputs = None
    if with_inputs:
        structure, tensors = flat_tensors((captured.args, dict(captured.kwargs)))
        inputs = InputsFile(_INPUTS, *_write_file(staging / _INPUTS, tensors), structure)
    return Manifest(
        torch_version=torch.__version__,
        model_name=model_name,
        plan=plan,
        graph_sha256=lines_digest(lines),
        nodes=lines,
        stages=tuple(stages),
        inputs=inputs,
        constants=captured.constants,
        check=captured.check,
    )


def _write_file(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, str]:
    """Write a file to the disk; return its size and SHA-256."""
    save_file(dict(tensors), path)
    # save_file makes private files; other ranks may be other users.
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return path.stat().st_size, file_sha256(path)


def read_tensors(path: Path, device: str | torch.device) -> dict[str, torch.Tensor]:
    """Return the tensors of a file on a device, each in its own memory.

    Raises PartitionError if it is no safetensors file, or the device is absent.
    """
    try:
        where = torch.device(device)
        # Read, not mapped: a mapping would be copied and held beside the copies.
        with safe_open(path, framework="pt", device="cpu", backend="pread") as file:
            return {name: file.get_tensor(name).to(where) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise PartitionError(f"{path} is no safetensors file: {error}; write it again") from None
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        line = next(iter(str(error).splitlines()), "")
        raise PartitionError(f"cannot load {path} to the device {device}: {line}") from None


def _check_same(slots: Mapping[str, Slot], found: Mapping[str, torch.Tensor]) -> None:
    """Raise unless a stage has exactly the tensors of its file, equal in shape and dtype."""
    parts = parts_in(slots)
    for name, tensor in found.items():
        check_fits(name, tensor, parts)
    tied: dict[int, str] = {}
    for name, part in parts.items():
        if name not in found:
            raise PartitionError(f"the file has no tensor {name!r}")
        first = tied.setdefault(id(part), name)
        if found[first] is not found[name]:
            raise PartitionError(f"{first!r} and {name!r} are one tensor in the stage, not there")
