"""Bounds from exact plans of parts of the graph."""
