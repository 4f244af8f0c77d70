"""What is allocated and released while a graph runs, forward, backward and in an optimiser."""

from fx_bridge.memory.profile import (
    LiveStorage,
    MemoryPoint,
    MemoryProfile,
    forward_workspaces,
    memory_profile,
    peak_memory,
    stage_profiles,
)

__all__ = [
    "LiveStorage",
    "MemoryPoint",
    "MemoryProfile",
    "forward_workspaces",
    "memory_profile",
    "peak_memory",
    "stage_profiles",
]
