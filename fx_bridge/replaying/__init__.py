"""Graphs run on fake tensors: whose memory every value lives in, and who writes there."""
