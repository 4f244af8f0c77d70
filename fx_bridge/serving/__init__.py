"""Serving language models: steps with static caches, and one plan for prompts and tokens."""

from fx_bridge.serving.halves import half_layers
from fx_bridge.serving.offload import StreamedServingPlan, plan_streamed_serving
from fx_bridge.serving.phases import capture_phases
from fx_bridge.serving.placed import PlacedStep
from fx_bridge.serving.plan import ServingPlan, ServingPlanner, plan_serving
from fx_bridge.serving.request import Request
from fx_bridge.serving.step import ServeStep, serve_step

__all__ = [
    "PlacedStep",
    "Request",
    "ServeStep",
    "ServingPlan",
    "ServingPlanner",
    "StreamedServingPlan",
    "capture_phases",
    "half_layers",
    "plan_serving",
    "plan_streamed_serving",
    "serve_step",
]
