"""Pipelines of processes that torchrun starts."""
