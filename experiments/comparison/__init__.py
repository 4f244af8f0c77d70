"""Comparisons of planners, and records of their answers."""
