"""The CP-SAT model: variables, rows, objective; runs of CP-SAT on it."""
