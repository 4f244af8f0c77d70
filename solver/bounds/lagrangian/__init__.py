"""A bound for unequal devices: prices of their time and memory (Lagrangian relaxation)."""
