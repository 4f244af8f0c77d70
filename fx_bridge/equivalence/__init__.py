"""What calls of two modules leave behind, and where that differs."""

from fx_bridge.equivalence.check import EquivalenceReport, check_equivalence

__all__ = [
    "EquivalenceReport",
    "check_equivalence",
]
