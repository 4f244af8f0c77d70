"""From a PyTorch model to an operator graph, and from a plan back to submodules that run."""

from fx_bridge.batch.microbatches import ChunkSpecs, chunk_specs
from fx_bridge.batch.resize import rescale
from fx_bridge.batch.table import BatchDim, BatchTable, batch_dimensions, check_microbatchable
from fx_bridge.capture.digest import graph_digest
from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.capture.modules import module_paths, operators_of
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
from fx_bridge.costs.backward import (
    BackwardCost,
    backward_costs,
    backward_flops,
    backward_moved_bytes,
)
from fx_bridge.costs.device_specs import DEVICE_SPECS, DeviceSpec
from fx_bridge.costs.kernels import Kernel
from fx_bridge.costs.operators import measured_latency_ns, node_flops, roofline_latency_ns
from fx_bridge.costs.timing import OperatorTimes, measure_operators
from fx_bridge.costs.workspaces import OperatorWorkspaces, measure_workspaces
from fx_bridge.digraph import to_digraph
from fx_bridge.dynamo import CompileBackend, compile_backend
from fx_bridge.equivalence.check import EquivalenceReport, check_equivalence
from fx_bridge.interop.read_plans import device_map_run, plan_from_device_map, plan_from_split_spec
from fx_bridge.interop.write_plans import device_map, split_spec
from fx_bridge.memory.profile import (
    LiveStorage,
    MemoryPoint,
    MemoryProfile,
    forward_workspaces,
    memory_profile,
    peak_memory,
    stage_profiles,
)
from fx_bridge.partition import PartitionResult, partition_module
from fx_bridge.pipeline.build import build_pipeline_stage, check_pipeline
from fx_bridge.pipeline.interfaces import (
    PipelinePosition,
    SharedWeight,
    StageInterfaces,
    stage_interfaces,
)
from fx_bridge.pipeline.rank import PipelineRank
from fx_bridge.placement.model import PlacedModel, place
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.split.graph import StageGraph, StageNode, StageValue, StageWeight
from fx_bridge.split.name_map import NameMap
from fx_bridge.split.pins import with_hand_made
from fx_bridge.split.reader import stage_graph
from fx_bridge.split.tags.non_tensors import NonTensorMoves, move_non_tensors
from fx_bridge.split.tags.plans import plan_from_tags, split_by_tags

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
