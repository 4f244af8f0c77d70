"""Plans in the formats of other programs, written and read."""

import sys
from typing import TYPE_CHECKING

from solver.model.lazy_package import LazyPackage

if TYPE_CHECKING:
    from fx_bridge.interop.checkpoints import checkpointed_modules as checkpointed_modules
    from fx_bridge.interop.checkpoints import plan_with_checkpoints as plan_with_checkpoints
    from fx_bridge.interop.engines import engine_words as engine_words
    from fx_bridge.interop.engines import placement_for as placement_for
    from fx_bridge.interop.engines import plan_from_words as plan_from_words
    from fx_bridge.interop.megatron import flagscale_settings as flagscale_settings
    from fx_bridge.interop.megatron import megatron_arguments as megatron_arguments
    from fx_bridge.interop.read_plans import device_map_run as device_map_run
    from fx_bridge.interop.read_plans import plan_from_device_map as plan_from_device_map
    from fx_bridge.interop.read_plans import plan_from_split_spec as plan_from_split_spec
    from fx_bridge.interop.transformers_ranks import layers_by_rank as layers_by_rank
    from fx_bridge.interop.write_plans import device_map as device_map
    from fx_bridge.interop.write_plans import split_spec as split_spec

sys.modules[__name__].__class__ = LazyPackage
