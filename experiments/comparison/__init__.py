"""Comparisons of planners, and what they find."""
