"""The stages of a split as programs of ``torch.export``, one ``.pt2`` file each.

To load them takes only torch, neither the model's code nor this project. ``programs.json`` beside
them names the arguments and results of each.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from fx_bridge.capture.model.attributes import is_of_torch, paths_read_by, stage_results
from fx_bridge.capture.model.messages import quiet
from fx_bridge.checkpoint.folders import made_folder, replaced_together
from fx_bridge.checkpoint.manifest import check_file, file_sha256
from fx_bridge.equivalence.calls import first_line
from fx_bridge.storages.replay import hint
from solver import PartitionError
from solver.io.files import load_json, write_text_atomically
from solver.io.json_fields import check_schema, read_as
from solver.model.checks import only_given

_SIZED: Final = (torch.Tensor, torch.SymInt)
INDEX: Final = "programs.json"
_SCHEMA: Final = "fxpartition.programs"
_VERSION: Final = 1
_OWNED: Final = re.compile(r"stage_\d+\.pt2")


@dataclass(frozen=True, slots=True)
class StageProgram:
    """One stage: its file, its arguments and its results.

    Attributes
    ----------
    name : str
        Of the child of the split, such as ``"submod_0"``.
    chunk : int
        Earlier passes of data through the devices; 0 without interleaving.
    file, size_bytes, sha256
        Name in the same folder, size, and digest in hexadecimal digits.
    reads : tuple of str
        Names of its arguments, in order: inputs of the model or results of earlier stages.
    returns : tuple of str
        Names of its results.
    returns_tuple : bool
        It returns a tuple; otherwise its only result.
    """

    name: str
    device: str
    chunk: int
    file: str
    size_bytes: int
    sha256: str
    reads: tuple[str, ...]
    returns: tuple[str, ...]
    returns_tuple: bool
    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class StagePrograms:
    """The programs of a folder.

    Attributes
    ----------
    torch_version : str
        Of the writer, for information.
    inputs, outputs : tuple of str
        Names of the model's arguments and results, without their containers.
    stages : tuple of StageProgram
        In execution order.
    """

    torch_version: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stages: tuple[StageProgram, ...]
    __repr__ = only_given


def save_stage_programs(split: fx.GraphModule, folder: str | os.PathLike[str]) -> StagePrograms:
    """Export every stage of a split and save it with ``torch.export.save``.

    Parameters
    ----------
    split : torch.fx.GraphModule
        From :func:`~fx_bridge.split.by_plan.split_by_plan` or ``result.split()``. Its weights may
        be on the meta device; the programs then have none.
    folder : path
        Made if missing. Programs of earlier calls are replaced.

    Returns
    -------
    StagePrograms
        As it was written to ``programs.json``.

    Raises
    ------
    PartitionError
        In one line: a stage cannot be exported or recomputes operators, the model returns a
        parameter unchanged, or the folder cannot be written.

    Notes
    -----
    Nothing is run: stages are exported with zeros of the shapes of their values, which are then
    fixed. All files are complete before the first is replaced, and the index is written last.

    Examples
    --------
    >>> import tempfile
    >>> from fx_bridge import capture, split_by_plan
    >>> from solver import PartitionPlan
    >>> captured = capture(torch.nn.Sequential(torch.nn.Linear(4, 4)), (torch.ones(1, 4),))
    >>> split = split_by_plan(captured, PartitionPlan({"linear": "cpu"}, ("cpu",)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_stage_programs(split, folder).stages[0].returns
    ('linear',)
    """
    if not isinstance(split, fx.GraphModule) or "plan" not in split.meta:
        raise PartitionError(
            "the module has no stages; give what split_by_plan or result.split() returned"
        )
    if again := split.meta["plan"].recomputed:
        raise PartitionError(
            f"the plan lets {min(again)!r} run again in the backward pass, which a program cannot "
            "say; use save_stages, or leave recomputed out of the plan"
        )
    values, outputs = _named_values(split)
    target, _ = made_folder(folder)
    with replaced_together(target, INDEX, _OWNED) as staging:
        stages = tuple(_save(split, node, values, staging) for node in _calls(split))
    programs = StagePrograms(
        torch_version=torch.__version__,
        inputs=tuple(node.name for node in split.graph.find_nodes(op="placeholder")),
        outputs=outputs,
        stages=stages,
    )
    fields = {"schema": _SCHEMA, "version": _VERSION, **dataclasses.asdict(programs)}
    write_text_atomically(target / INDEX, json.dumps(fields, indent=1) + "\n")
    return programs


def load_stage_programs(folder: str | os.PathLike[str]) -> StagePrograms:
    """Read the index of a folder of programs; no program is loaded.

    Raises
    ------
    PartitionError
        If it has no valid ``programs.json``.
    """
    path = Path(folder) / INDEX
    if not path.is_file():
        raise PartitionError(f"{folder} has no {INDEX}; write it with save_stage_programs")
    programs: StagePrograms = load_json(
        path,
        lambda data: read_as(StagePrograms, check_schema(data, "", _SCHEMA, _VERSION), ""),
    )
    return programs


def load_stage_program(folder: str | os.PathLike[str], stage: StageProgram) -> ExportedProgram:
    """Load the program of one stage after a check of its SHA-256.

    ``torch.export.load`` unpickles parts of a file: load only files of people you trust.

    Raises
    ------
    PartitionError
        If the file is missing or altered, or in another folder.
    """
    if Path(stage.file).name != stage.file:
        raise PartitionError(f"file {stage.file!r} is not in {folder}; write its name alone")
    path = check_file(Path(folder), stage.file, stage.size_bytes, stage.sha256)
    return torch.export.load(path)


def run_stage_programs(
    folder: str | os.PathLike[str], inputs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Run all programs of a folder in this process, one after another.

    Parameters
    ----------
    folder : path
        Written by :func:`save_stage_programs`.
    inputs : mapping of str
        The value of every input, by the names of ``StagePrograms.inputs``.

    Returns
    -------
    tuple
        The model's results, in order, without their containers.

    Raises
    ------
    PartitionError
        If an input is missing or unknown, or a file is missing or altered.
    """
    programs = load_stage_programs(folder)
    for name in (*programs.inputs, *inputs):
        if name not in inputs or name not in programs.inputs:
            wrong = "missing" if name not in inputs else "unknown"
            raise PartitionError(
                f"input {name!r} is {wrong}; the inputs are {', '.join(programs.inputs)}"
            )
    values = dict(inputs)
    for stage in programs.stages:
        module = load_stage_program(folder, stage).module()
        result = module(*(values[name] for name in stage.reads))
        results = result if stage.returns_tuple else (result,)
        values.update(zip(stage.returns, results, strict=True))
    return tuple(values[name] for name in programs.outputs)


def _calls(split: fx.GraphModule) -> list[fx.Node]:
    return list(split.graph.find_nodes(op="call_module"))


def _named_values(split: fx.GraphModule) -> tuple[dict[fx.Node, str], tuple[str, ...]]:
    """Return the name of every value at the root of a split, and the names of its results."""
    values = {node: node.name for node in split.graph.find_nodes(op="placeholder")}
    for call in _calls(split):
        results = stage_results(_stage(split, call))
        if isinstance(_stage(split, call).graph.output_node().args[0], fx.Node):
            values[call] = results[0].name
            continue
        for user in call.users:
            if user.op == "call_function":
                values[user] = results[int(str(user.args[1]))].name
    leaves = pytree.tree_leaves(split.graph.output_node().args[0])
    for leaf in leaves:
        if isinstance(leaf, fx.Node) and leaf not in values:
            raise PartitionError(
                f"the model returns its weight {str(leaf.target)!r} as it is, which no stage "
                "computes; let it return a copy (weight.clone())"
            )
    return values, tuple(values[leaf] for leaf in leaves if isinstance(leaf, fx.Node))


def _save(
    split: fx.GraphModule, call: fx.Node, values: Mapping[fx.Node, str], staging: Path
) -> StageProgram:
    stage = _stage(split, call)
    examples = tuple(_example(node) for node in stage.graph.find_nodes(op="placeholder"))
    position = stage.meta["stage"]
    if hidden := [path for path in paths_read_by(stage.graph) if is_of_torch(path)]:
        raise PartitionError(
            f"stage {position} ({call.target}) reads {hidden[0]!r}, and the module that "
            "torch.export.load makes has an attribute of its own called so; rename that part of "
            "the model, or use save_stages"
        )
    for node in stage.graph.find_nodes(op="placeholder"):
        leaves = pytree.tree_leaves(node.meta["val"])
        if any(isinstance(x, _SIZED) and free_unbacked_symbols(x) for x in leaves):
            raise PartitionError(
                f"stage {position} ({call.target}) reads {node.name!r}, whose size depends on the "
                "values of tensors, and a program takes one size; split with other stages, or use "
                "save_stages"
            )
    path = staging / f"stage_{position}.pt2"
    # torch's own writer ends the process if the disk is full.
    archive = io.BytesIO()
    try:
        with quiet():
            program = torch.export.export(stage, examples, strict=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.export.save(program, archive)
    except Exception as error:
        raise PartitionError(
            f"stage {position} ({call.target}) cannot be exported ({type(error).__name__}: "
            f"{first_line(error)}); split with other stages, or use save_stages"
        ) from error
    with path.open("wb") as stream:
        stream.write(archive.getbuffer())
        stream.flush()
        os.fsync(stream.fileno())
    return StageProgram(
        name=str(call.target),
        device=stage.meta["device"],
        chunk=stage.meta["chunk"],
        file=path.name,
        size_bytes=path.stat().st_size,
        sha256=file_sha256(path),
        reads=tuple(values[read] for read in call.args if isinstance(read, fx.Node)),
        returns=tuple(node.name for node in stage_results(stage)),
        returns_tuple=not isinstance(stage.graph.output_node().args[0], fx.Node),
    )


def _stage(split: fx.GraphModule, call: fx.Node) -> fx.GraphModule:
    stage = split.get_submodule(str(call.target))
    assert isinstance(stage, fx.GraphModule)
    return stage


def _example(node: fx.Node) -> Any:
    """Return zeros like the value of a stage's input."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            size = [hint(length) for length in value.shape]
            stride = [hint(length) for length in value.stride()]
            # Elements may share memory, as in an expanded tensor.
            last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
            count = last + 1 if all(size) else 0
            memory = torch.zeros(count, dtype=value.dtype, device=value.device)
            return memory.as_strided(size, stride)
        return hint(value) if isinstance(value, torch.SymInt) else value

    return pytree.tree_map(plain, node.meta["val"])
