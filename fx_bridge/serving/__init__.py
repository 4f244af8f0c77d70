"""Serving language models: steps with static caches, and one plan for prefill and decode."""

from fx_bridge.serving.step import ServeStep, serve_step

__all__ = ["ServeStep", "serve_step"]
