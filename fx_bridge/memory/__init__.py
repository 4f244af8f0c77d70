"""What is allocated and released while a graph runs, forward, backward and in an optimiser."""

from fx_bridge.memory.profile import (
    forward_workspaces,
    memory_profile,
    peak_memory,
    stage_profiles,
)
from fx_bridge.memory.result import LiveStorage, MemoryPoint, MemoryProfile

__all__ = [
    "LiveStorage",
    "MemoryPoint",
    "MemoryProfile",
    "forward_workspaces",
    "memory_profile",
    "peak_memory",
    "stage_profiles",
]
