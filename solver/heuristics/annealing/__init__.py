"""Simulated annealing of units and clusters, in Python and compiled."""
