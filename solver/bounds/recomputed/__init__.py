"""Bounds with recomputation."""
