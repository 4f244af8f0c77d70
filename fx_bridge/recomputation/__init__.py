"""Stages that recompute operators in the backward pass instead of keeping their results."""
