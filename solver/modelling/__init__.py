"""Variables and constraints of the CP-SAT model, a family in each file."""
