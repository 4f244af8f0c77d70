"""Graphs run on fake tensors: where every value lives, who writes there, by which kernels."""
