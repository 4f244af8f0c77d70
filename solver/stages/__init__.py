"""Stages between two ideals: their work, transfers and memory."""
