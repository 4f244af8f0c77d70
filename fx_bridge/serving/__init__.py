"""Serving of language models: steps with static caches, and one plan for prompts and tokens."""

import sys
from typing import TYPE_CHECKING

from solver.model.lazy_package import LazyPackage

if TYPE_CHECKING:
    from fx_bridge.serving.halves import half_layers as half_layers
    from fx_bridge.serving.hosted import HostedPlan as HostedPlan
    from fx_bridge.serving.phases import capture_phases as capture_phases
    from fx_bridge.serving.placed import PlacedStep as PlacedStep
    from fx_bridge.serving.plan import ServingPlan as ServingPlan
    from fx_bridge.serving.planner import ServingPlanner as ServingPlanner
    from fx_bridge.serving.planner import plan_serving as plan_serving
    from fx_bridge.serving.request import Request as Request
    from fx_bridge.serving.step import ServeStep as ServeStep
    from fx_bridge.serving.step import serve_step as serve_step

sys.modules[__name__].__class__ = LazyPackage
