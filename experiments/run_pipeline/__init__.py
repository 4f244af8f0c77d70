"""Pipelines of processes started by torchrun."""
