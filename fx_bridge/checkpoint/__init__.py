"""Folders of stages: tensors, inputs, programs, and a manifest that checks them."""

from fx_bridge.checkpoint.manifest import Manifest, check_manifest, load_manifest
from fx_bridge.checkpoint.programs import (
    StageProgram,
    StagePrograms,
    load_stage_program,
    load_stage_programs,
    run_stage_programs,
    save_stage_programs,
)
from fx_bridge.checkpoint.ranks import load_model_weights, load_rank_weights
from fx_bridge.checkpoint.stages import load_inputs, load_stage_weights, save_stages

__all__ = [
    "Manifest",
    "StageProgram",
    "StagePrograms",
    "check_manifest",
    "load_inputs",
    "load_manifest",
    "load_model_weights",
    "load_rank_weights",
    "load_stage_program",
    "load_stage_programs",
    "load_stage_weights",
    "run_stage_programs",
    "save_stage_programs",
    "save_stages",
]
