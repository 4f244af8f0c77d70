"""Allocations and releases of a graph's forward and backward pass, and of an optimiser."""
