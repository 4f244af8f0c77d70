"""Graphs run on fake tensors: the storages of all values, their writers, and the kernels used."""
