"""From a PyTorch model to an operator graph, and from a plan back to submodules that run."""

from fx_bridge.batch import BatchDim, BatchTable, batch_dimensions, check_microbatchable
from fx_bridge.batching.microbatches import ChunkSpecs, chunk_specs
from fx_bridge.batching.rescale import rescale
from fx_bridge.capture import CapturedGraph, capture
from fx_bridge.capturing.graph_digest import graph_digest
from fx_bridge.colocation import colocation_groups
from fx_bridge.costing.backward import (
    BackwardCost,
    backward_costs,
    backward_flops,
    backward_moved_bytes,
)
from fx_bridge.costing.counting import Kernel
from fx_bridge.costing.specs import DEVICE_SPECS, DeviceSpec
from fx_bridge.costing.timing import OperatorTimes, measure_operators
from fx_bridge.costing.workspaces import OperatorWorkspaces, measure_workspaces
from fx_bridge.costs import (
    measured_latency_ns,
    node_flops,
    roofline_latency_ns,
)
from fx_bridge.digraph import to_digraph
from fx_bridge.dynamo import CompileBackend, compile_backend
from fx_bridge.equivalence import EquivalenceReport, check_equivalence
from fx_bridge.files.manifest import Manifest, check_manifest, load_manifest
from fx_bridge.files.rank_weights import load_model_weights, load_rank_weights
from fx_bridge.files.stage_files import load_inputs, load_stage_weights, save_stages
from fx_bridge.files.stage_programs import (
    StageProgram,
    StagePrograms,
    load_stage_program,
    load_stage_programs,
    run_stage_programs,
    save_stage_programs,
)
from fx_bridge.memory import (
    LiveStorage,
    MemoryPoint,
    MemoryProfile,
    forward_workspaces,
    memory_profile,
    peak_memory,
    stage_profiles,
)
from fx_bridge.modules.foreign_plans import (
    device_map_run,
    plan_from_device_map,
    plan_from_split_spec,
)
from fx_bridge.modules.hand_made import with_hand_made
from fx_bridge.modules.hand_over import device_map, split_spec
from fx_bridge.modules.module_paths import module_paths, operators_of
from fx_bridge.partition import PartitionResult, partition_module
from fx_bridge.pipeline import build_pipeline_stage, check_pipeline
from fx_bridge.pipelining.pipeline_rank import PipelineRank
from fx_bridge.placement import PlacedModel, place
from fx_bridge.splits.name_map import NameMap
from fx_bridge.splits.non_tensors import NonTensorMoves, move_non_tensors
from fx_bridge.splits.split_reader import stage_graph
from fx_bridge.splits.stage_graph import StageGraph, StageNode, StageValue, StageWeight
from fx_bridge.splits.tags import plan_from_tags, split_by_tags
from fx_bridge.splitting import split_by_plan
from fx_bridge.stages import PipelinePosition, SharedWeight, StageInterfaces, stage_interfaces

__all__ = [
    "DEVICE_SPECS",
    "BackwardCost",
    "BatchDim",
    "BatchTable",
    "CapturedGraph",
    "ChunkSpecs",
    "CompileBackend",
    "DeviceSpec",
    "EquivalenceReport",
    "Kernel",
    "LiveStorage",
    "Manifest",
    "MemoryPoint",
    "MemoryProfile",
    "NameMap",
    "NonTensorMoves",
    "OperatorTimes",
    "OperatorWorkspaces",
    "PartitionResult",
    "PipelinePosition",
    "PipelineRank",
    "PlacedModel",
    "SharedWeight",
    "StageGraph",
    "StageInterfaces",
    "StageNode",
    "StageProgram",
    "StagePrograms",
    "StageValue",
    "StageWeight",
    "backward_costs",
    "backward_flops",
    "backward_moved_bytes",
    "batch_dimensions",
    "build_pipeline_stage",
    "capture",
    "check_equivalence",
    "check_manifest",
    "check_microbatchable",
    "check_pipeline",
    "chunk_specs",
    "colocation_groups",
    "compile_backend",
    "device_map",
    "device_map_run",
    "forward_workspaces",
    "graph_digest",
    "load_inputs",
    "load_manifest",
    "load_model_weights",
    "load_rank_weights",
    "load_stage_program",
    "load_stage_programs",
    "load_stage_weights",
    "measure_operators",
    "measure_workspaces",
    "measured_latency_ns",
    "memory_profile",
    "module_paths",
    "move_non_tensors",
    "node_flops",
    "operators_of",
    "partition_module",
    "peak_memory",
    "place",
    "plan_from_device_map",
    "plan_from_split_spec",
    "plan_from_tags",
    "rescale",
    "roofline_latency_ns",
    "run_stage_programs",
    "save_stage_programs",
    "save_stages",
    "split_by_plan",
    "split_by_tags",
    "split_spec",
    "stage_graph",
    "stage_interfaces",
    "stage_profiles",
    "to_digraph",
    "with_hand_made",
]
