"""From a PyTorch model to an operator graph, and from a plan back to submodules that run."""

from fx_bridge.batch.microbatches import chunk_specs
from fx_bridge.batch.resize import rescale
from fx_bridge.batch.table import batch_dimensions
from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.checkpoint.programs import (
    load_stage_programs,
    run_stage_programs,
    save_stage_programs,
)
from fx_bridge.checkpoint.ranks import load_rank_weights
from fx_bridge.checkpoint.stages import load_stage_weights, save_stages
from fx_bridge.costs.device_specs import DEVICE_SPECS, DeviceSpec
from fx_bridge.costs.latency import measured_latency_ns
from fx_bridge.costs.recompute import Recompute
from fx_bridge.digraph import to_digraph
from fx_bridge.dynamo import compile_backend
from fx_bridge.equivalence.check import EquivalenceReport, check_equivalence
from fx_bridge.interop.read_plans import plan_from_device_map, plan_from_split_spec
from fx_bridge.interop.write_plans import device_map, split_spec
from fx_bridge.memory.profile import memory_profile, peak_memory
from fx_bridge.options import (
    Costs,
    Placement,
    Search,
    Training,
)
from fx_bridge.partition import PartitionResult, partition_module
from fx_bridge.pipeline.build import build_pipeline_stage
from fx_bridge.pipeline.rank import PipelineRank
from fx_bridge.placement.model import PlacedModel, place
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.graph import StageGraph
from fx_bridge.split.reader import stage_graph
from fx_bridge.split.tags.plans import split_by_tags
from solver import Pipeline

__all__ = [
    "DEVICE_SPECS",
    "CapturedGraph",
    "Costs",
    "DeviceSpec",
    "EquivalenceReport",
    "PartitionResult",
    "Pipeline",
    "PipelineRank",
    "PlacedModel",
    "Placement",
    "Recompute",
    "Search",
    "StageGraph",
    "Training",
    "batch_dimensions",
    "build_pipeline_stage",
    "capture",
    "check_equivalence",
    "chunk_specs",
    "compile_backend",
    "device_map",
    "load_rank_weights",
    "load_stage_programs",
    "load_stage_weights",
    "measured_latency_ns",
    "memory_profile",
    "partition_module",
    "peak_memory",
    "place",
    "plan_from_device_map",
    "plan_from_split_spec",
    "rescale",
    "run_stage_programs",
    "save_stage_programs",
    "save_stages",
    "split_by_plan",
    "split_by_tags",
    "split_spec",
    "stage_graph",
    "to_digraph",
]
