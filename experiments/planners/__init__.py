"""Planners side by side: our solvers and what others plan with."""
