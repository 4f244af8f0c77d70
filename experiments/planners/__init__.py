"""Planners: our solvers and those of other projects."""
