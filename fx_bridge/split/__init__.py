"""What must share a stage; graphs split by plans, checked, and read as stages."""

from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.split.graph import (
    StageGraph,
    StageNode,
    StageValue,
    StageWeight,
)
from fx_bridge.split.name_map import NameMap
from fx_bridge.split.pins import with_hand_made
from fx_bridge.split.reader import stage_graph

__all__ = [
    "NameMap",
    "StageGraph",
    "StageNode",
    "StageValue",
    "StageWeight",
    "colocation_groups",
    "split_by_plan",
    "stage_graph",
    "with_hand_made",
]
