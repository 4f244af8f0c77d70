"""The job of one process of a pipeline, made and checked before any process group starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import fx

from experiments.pipelines.inputs import Inputs, microbatch_inputs
from experiments.problems.recomputed_plans import problem_of_plan
from experiments.run_pipeline.launch import JobOptions, Launch
from experiments.run_pipeline.weightless import build_weightless
from experiments.zoo.building import (
    DEFAULT_CAPTURE,
    CaptureRequest,
    ModelSpec,
    build_model,
    capture_model,
)
from experiments.zoo.models import resolve_built
from fx_bridge.batch.microbatches import ChunkSpecs, pipeline_specs
from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.checkpoint.manifest import (
    Manifest,
    check_file,
    check_manifest,
    check_plan,
    load_manifest,
)
from fx_bridge.checkpoint.stages import load_inputs
from fx_bridge.interop.write_plans import check_resident
from fx_bridge.pipeline.checks import check_pipeline, check_world, local_device
from fx_bridge.split.by_plan import split_by_plan
from solver import PartitionError, PartitionPlan, load_plan


@dataclass(frozen=True, slots=True)
class RankJob:
    """The checked job of one process.

    `inputs` has (args, kwargs) of each microbatch, and `batch` of all of them, concatenated;
    `specs` splits a batch into microbatches, and is None for a single one. `weights_bytes` are
    those of parameters and buffers of this rank's stages, which `stages` names. `note` gives the
    reason for which the model was built with weights despite stage files; else it is empty.
    """

    captured: CapturedGraph
    split: fx.GraphModule
    plan: PartitionPlan
    device: torch.device
    microbatches: int
    inputs: tuple[Inputs, ...]
    batch: Inputs
    specs: ChunkSpecs | None
    weights_bytes: int
    stages: tuple[str, ...]
    note: str


def prepare(options: JobOptions, launch: Launch) -> RankJob:
    """Make and check the job of a process.

    Raises PartitionError in one line: the plan, the model, the files, the device or another option
    is invalid.
    """
    spec = resolve_built(options.model)
    plan = load_plan(options.plan_file)
    check_resident(plan)
    # Before the model is built, which may take long.
    check_world(plan.device_order, launch.world_size)
    device = local_device(plan.device_order[launch.rank], _wanted(plan, options, launch))
    manifest = None
    if options.weights is not None:
        manifest = load_manifest(options.weights)
        check_plan(manifest, plan)
        _check_files(manifest, options.weights, launch.rank)
    captured, note = _captured(spec, manifest, options.weights)
    split = split_by_plan(captured, plan, problem=problem_of_plan(captured, plan))
    microbatches = options.microbatches or len(plan.device_order)
    check_pipeline(
        split,
        launch.rank,
        launch.world_size,
        microbatches=microbatches,
        schedule=options.schedule,
        device=device,
        training=options.train,
        tied_weights=options.tied_weights,
    )
    own = [
        name
        for name, where in split.meta["stages"].items()
        if where == plan.device_order[launch.rank]
    ]
    specs = pipeline_specs(captured, microbatches) if microbatches > 1 else None
    inputs, batch = microbatch_inputs(captured, specs, microbatches)
    return RankJob(
        captured=captured,
        split=split,
        plan=plan,
        device=device,
        microbatches=microbatches,
        inputs=inputs,
        batch=batch,
        specs=specs,
        weights_bytes=_held_bytes(split, own),
        stages=tuple(own),
        note=note,
    )


def _wanted(plan: PartitionPlan, options: JobOptions, launch: Launch) -> str | None:
    """Return the device of this process if it is not the plan's, else None."""
    if options.device is not None:
        has_number = ":" in options.device or options.device == "cpu"
        return options.device if has_number else f"{options.device}:{launch.local_rank}"
    kind, colon, _ = plan.device_order[launch.rank].partition(":")
    if colon and kind != "cpu" and launch.local_world_size < launch.world_size:
        # A plan numbers the devices of all hosts together; each host numbers its own from 0.
        return f"{kind}:{launch.local_rank}"
    return None


def _check_files(manifest: Manifest, folder: str, rank: int) -> None:
    """Check only this rank's files; hosts may lack those of other ranks."""
    ranks = len(manifest.plan.device_order)
    for entry in manifest.stages:
        if entry.position % ranks == rank:
            check_file(Path(folder), entry.file, entry.size_bytes, entry.sha256)


def _held_bytes(split: fx.GraphModule, own: list[str]) -> int:
    stages = [split.get_submodule(name) for name in own]
    tensors = {id(t): t for stage in stages for t in (*stage.parameters(), *stage.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values())


def _captured(
    spec: ModelSpec, manifest: Manifest | None, folder: str | None
) -> tuple[CapturedGraph, str]:
    """Capture the model, if possible without weights in memory; else add a note of the reason."""
    note, asked = "", DEFAULT_CAPTURE
    if manifest is not None:
        asked = CaptureRequest(manifest.constants, manifest.check)
    inputs = load_inputs(folder) if folder is not None else None
    if asked.check:
        note = "the model was built with all of its weights, for it was split with --check"
    elif manifest is not None and spec.name.lower().endswith(".pt2"):
        note = "each process loaded all weights, for a .pt2 file is read as a whole"
    elif manifest is not None and inputs is not None:
        try:
            loaded = build_weightless(spec)
            captured = capture_model(replace(loaded, args=inputs[0], kwargs=inputs[1]), asked)
            check_manifest(manifest, captured)
            return captured, ""
        except PartitionError as error:
            # Build it again with weights; a real error occurs again.
            note = f"the model was built with all of its weights, for without: {error}"
    loaded = build_model(spec)
    args, kwargs = inputs or (loaded.args, loaded.kwargs)
    try:
        captured = capture_model(replace(loaded, args=args, kwargs=kwargs), asked)
    except PartitionError as error:
        if manifest is None or inputs is None:
            raise
        raise PartitionError(
            f"the stage files are of another graph: model {spec.name!r} does not take the inputs "
            f"of {folder}, written for {manifest.model_name!r}: {error}"
        ) from None
    if manifest is not None:
        check_manifest(manifest, captured)
    elif not loaded.has_weights:
        raise PartitionError(
            f"model {spec.name!r} has no weights in memory, so it cannot be run; give --weights, a "
            "folder that fxpartition split --out wrote"
        )
    return captured, note
