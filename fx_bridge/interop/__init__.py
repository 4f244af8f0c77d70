"""Plans as other programs write them, and for them."""

from fx_bridge.interop.checkpoints import checkpointed_modules, plan_with_checkpoints
from fx_bridge.interop.engines import engine_words, placement_for, plan_from_words
from fx_bridge.interop.megatron import flagscale_settings, megatron_arguments
from fx_bridge.interop.read_plans import device_map_run, plan_from_device_map, plan_from_split_spec
from fx_bridge.interop.write_plans import device_map, split_spec

__all__ = [
    "checkpointed_modules",
    "device_map",
    "device_map_run",
    "engine_words",
    "flagscale_settings",
    "megatron_arguments",
    "placement_for",
    "plan_from_device_map",
    "plan_from_split_spec",
    "plan_from_words",
    "plan_with_checkpoints",
    "split_spec",
]
