"""What operators cost, counted or measured: times, workspaces, backward passes."""

from fx_bridge.costs.backward import (
    BackwardCost,
    backward_costs,
    backward_flops,
    backward_moved_bytes,
)
from fx_bridge.costs.device_specs import DEVICE_SPECS, DeviceSpec
from fx_bridge.costs.kernels import Kernel
from fx_bridge.costs.latency import measured_latency_ns, roofline_latency_ns
from fx_bridge.costs.operators import node_flops
from fx_bridge.costs.recompute import Recompute
from fx_bridge.costs.timing import OperatorTimes, measure_operators
from fx_bridge.costs.workspaces import OperatorWorkspaces, measure_workspaces

__all__ = [
    "DEVICE_SPECS",
    "BackwardCost",
    "DeviceSpec",
    "Kernel",
    "OperatorTimes",
    "OperatorWorkspaces",
    "Recompute",
    "backward_costs",
    "backward_flops",
    "backward_moved_bytes",
    "measure_operators",
    "measure_workspaces",
    "measured_latency_ns",
    "node_flops",
    "roofline_latency_ns",
]
