"""Plans as other programs write them, and for them."""

from fx_bridge.interop.read_plans import device_map_run, plan_from_device_map, plan_from_split_spec
from fx_bridge.interop.write_plans import device_map, split_spec

__all__ = [
    "device_map",
    "device_map_run",
    "plan_from_device_map",
    "plan_from_split_spec",
    "split_spec",
]
