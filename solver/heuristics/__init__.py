"""Primal heuristics: they find and improve plans, and claim nothing."""
