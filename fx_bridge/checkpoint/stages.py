"""A folder with one safetensors file for every stage of a split, from which ranks load theirs.

Beside them are the example inputs and ``manifest.json`` (:mod:`fx_bridge.checkpoint.manifest`),
which says what belongs together. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import fx, nn

from fx_bridge.capture.digest import graph_lines, lines_digest
from fx_bridge.capture.graph import CapturedGraph
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
from solver.model.text import shown

_STAGING: Final = ".fxpartition."
_OURS: Final = re.compile(r"stage_\d+\.safetensors|inputs\.safetensors")
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
        What :func:`~fx_bridge.split.by_plan.split_by_plan` returned for `captured`.
    captured : CapturedGraph
        The graph that was split; it holds the example inputs.
    folder : path
        Made if missing. One that ``save_stages`` wrote before is replaced; any other must be
        empty.
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
        In one line: a tensor has no values or is of a kind that safetensors cannot hold, the
        inputs are no plain data, or the folder cannot be written or holds something else.

    Notes
    -----
    ``stage_<position>.safetensors`` holds every parameter, buffer and constant of the stage under
    its path in the stage, and of one that holds others, such as a quantised weight, those within:
    ``0.weight.qdata``. Tied tensors are written once in each stage that has them. All files
    are written to a temporary folder within `folder` and renamed when each is complete, the
    manifest last: a run that is interrupted leaves what was there, or a folder without
    manifest, which no reader takes for complete.

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
    try:
        staging = Path(tempfile.mkdtemp(dir=target, prefix=_STAGING))
        try:
            manifest = _write(split, captured, lines, staging, with_inputs, model_name)
            _publish(manifest, staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PartitionError(
            f"cannot write to the folder {folder}: {reason}; free its disk or write another path"
        ) from None
    return manifest


def load_stage_weights(
    stage: nn.Module,
    folder: str | os.PathLike[str],
    position: int,
    device: str | torch.device = "cpu",
) -> int:
    """Give a stage the tensors of its file, on a device.

    Only that file is read. The stage may be on the meta device, or anywhere.

    Parameters
    ----------
    stage : torch.nn.Module
        The child of a split of the same graph by the same plan. Every parameter, buffer and
        constant is replaced by a new one, with the ``requires_grad`` that it had; tied ones are
        one object again. A submodule that the graph calls as a whole is the model's own, and is
        filled itself.
    folder : path
        That :func:`save_stages` wrote.
    position : int
        Of the stage in the pipeline: chunk x number of devices + rank of the device.
    device : str or torch.device
        Where the tensors are put.

    Returns
    -------
    int
        Bytes of the tensors that were loaded.

    Raises
    ------
    PartitionError
        In one line: the file is missing or altered, the device is not there, or a tensor has
        another shape or dtype than that in the file. The stage is then as it was.
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
    """Return the example inputs that a folder of stage files holds, None if it holds none.

    Returns
    -------
    tuple of (args, kwargs) or None
        On the CPU.

    Raises
    ------
    PartitionError
        If their file is missing or altered, or the manifest is not valid.
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

    Raises
    ------
    PartitionError
        If it cannot be made, or holds anything but stage files.
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise PartitionError(
            f"folder is {shown(folder)}; write the name of a folder, such as 'stages'"
        )
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in target.iterdir())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PartitionError(
            f"cannot make the folder {folder}: {reason}; write another path"
        ) from None
    if MANIFEST in names:
        content = read_json(target / MANIFEST)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise PartitionError(
                f"{folder} has a {MANIFEST} of something else; write another folder"
            )
        return target
    # What an interrupted run left may be written over.
    strange = [n for n in names if not _OURS.fullmatch(n) and not n.startswith(_STAGING)]
    if strange:
        raise PartitionError(
            f"{folder} holds other files, such as {strange[0]}; write a new or an empty folder"
        )
    return target


# -- writing -------------------------------------------------------------------------------


def _write(
    split: fx.GraphModule,
    captured: CapturedGraph,
    lines: Mapping[str, str],
    staging: Path,
    with_inputs: bool,
    model_name: str | None,
) -> Manifest:
    """Write all files but the manifest to `staging`, and return the manifest."""
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
    # It makes private files; other ranks may be other users.
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return path.stat().st_size, file_sha256(path)


def _publish(manifest: Manifest, staging: Path, target: Path) -> None:
    """Put complete files in the place of what `target` held, the manifest last."""
    (target / MANIFEST).unlink(missing_ok=True)
    for path in list(target.iterdir()):
        # Folders and files of a run that was killed have a temporary name.
        is_left = path.name.startswith(_STAGING) and path != staging
        if is_left and path.is_dir():
            shutil.rmtree(path)
        elif is_left or _OURS.fullmatch(path.name):
            path.unlink()
    for path in list(staging.iterdir()):
        path.replace(target / path.name)
    write_text_atomically(target / MANIFEST, json.dumps(manifest.to_dict(), indent=1) + "\n")


# -- reading -------------------------------------------------------------------------------


def read_tensors(path: Path, device: str | torch.device) -> dict[str, torch.Tensor]:
    """Return the tensors of a file on a device, each in memory of its own.

    Raises
    ------
    PartitionError
        If it is no safetensors file, or the device is not there.
    """
    try:
        where = torch.device(device)
        # Read, not mapped: a mapping would be copied, and be held beside the copies.
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
