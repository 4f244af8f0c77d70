"""Conflicts of an infeasible problem, and the least changes that make a plan possible."""
