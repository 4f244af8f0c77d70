"""Searches that improve plans: annealing, orders, exact sub-solves, steps."""
