"""From a PyTorch model to an operator graph, and from a plan back to submodules that run."""

from fx_bridge.backward import (
    BackwardCost,
    Kernel,
    backward_costs,
    backward_flops,
    backward_moved_bytes,
)
from fx_bridge.batch import BatchDim, BatchTable, batch_dimensions, check_microbatchable
from fx_bridge.capture import CapturedGraph, capture
from fx_bridge.colocation import colocation_groups
from fx_bridge.costs import (
    measured_latency_ns,
    node_flops,
    roofline_latency_ns,
)
from fx_bridge.digraph import to_digraph
from fx_bridge.dynamo import CompileBackend, compile_backend
from fx_bridge.equivalence import EquivalenceReport, check_equivalence
from fx_bridge.memory import (
    LiveStorage,
    MemoryPoint,
    MemoryProfile,
    forward_workspaces,
    memory_profile,
    peak_memory,
    stage_profiles,
)
from fx_bridge.microbatches import ChunkSpecs, chunk_specs
from fx_bridge.name_map import NameMap
from fx_bridge.non_tensors import NonTensorMoves, move_non_tensors
from fx_bridge.partition import PartitionResult, partition_module
from fx_bridge.rescale import rescale
from fx_bridge.specs import DEVICE_SPECS, DeviceSpec
from fx_bridge.split_reader import stage_graph
from fx_bridge.splitting import split_by_plan
from fx_bridge.stage_graph import StageGraph, StageNode, StageValue, StageWeight
from fx_bridge.tags import plan_from_tags, split_by_tags

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
    "MemoryPoint",
    "MemoryProfile",
    "NameMap",
    "NonTensorMoves",
    "PartitionResult",
    "StageGraph",
    "StageNode",
    "StageValue",
    "StageWeight",
    "backward_costs",
    "backward_flops",
    "backward_moved_bytes",
    "batch_dimensions",
    "capture",
    "check_equivalence",
    "check_microbatchable",
    "chunk_specs",
    "colocation_groups",
    "compile_backend",
    "forward_workspaces",
    "measured_latency_ns",
    "memory_profile",
    "move_non_tensors",
    "node_flops",
    "partition_module",
    "peak_memory",
    "plan_from_tags",
    "rescale",
    "roofline_latency_ns",
    "split_by_plan",
    "split_by_tags",
    "stage_graph",
    "stage_profiles",
    "to_digraph",
]
