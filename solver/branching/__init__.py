"""The exact search: first plans, device orders and other branches, runs of CP-SAT."""
