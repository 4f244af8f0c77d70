"""Bounds by the position of stages in the order of work."""
