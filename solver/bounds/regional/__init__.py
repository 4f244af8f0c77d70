"""Bounds by regions between articulation units, and by the position of stages."""
