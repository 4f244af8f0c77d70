"""How models of any kind become graphs in which every value is known."""

from fx_bridge.capture.digest import graph_digest
from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.capture.modules import module_paths, operators_of

__all__ = [
    "CapturedGraph",
    "capture",
    "graph_digest",
    "module_paths",
    "operators_of",
]
