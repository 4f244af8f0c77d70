"""Stages on several processes: what travels between them, and how a batch goes through."""

from fx_bridge.pipeline.build import build_pipeline_stage
from fx_bridge.pipeline.checks import check_pipeline
from fx_bridge.pipeline.interfaces import (
    PipelinePosition,
    SharedWeight,
    StageInterfaces,
    stage_interfaces,
)
from fx_bridge.pipeline.rank import PipelineRank

__all__ = [
    "PipelinePosition",
    "PipelineRank",
    "SharedWeight",
    "StageInterfaces",
    "build_pipeline_stage",
    "check_pipeline",
    "stage_interfaces",
]
