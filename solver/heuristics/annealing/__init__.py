"""Simulated annealing of units and clusters."""
