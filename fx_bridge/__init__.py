"""From a PyTorch model to an operator graph, and from a plan back to submodules that run."""

from fx_bridge.capture import CapturedGraph, capture
from fx_bridge.colocation import colocation_groups
from fx_bridge.costs import (
    measured_latency_ns,
    node_flops,
    roofline_latency_ns,
)
from fx_bridge.digraph import to_digraph
from fx_bridge.equivalence import EquivalenceReport, check_equivalence
from fx_bridge.partition import PartitionResult, partition_module
from fx_bridge.specs import DEVICE_SPECS, DeviceSpec
from fx_bridge.splitting import split_by_plan

__all__ = [
    "DEVICE_SPECS",
    "CapturedGraph",
    "DeviceSpec",
    "EquivalenceReport",
    "PartitionResult",
    "capture",
    "check_equivalence",
    "colocation_groups",
    "measured_latency_ns",
    "node_flops",
    "partition_module",
    "roofline_latency_ns",
    "split_by_plan",
    "to_digraph",
]
