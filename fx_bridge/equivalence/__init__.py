"""Comparison of the outputs and effects of calls of two modules."""
