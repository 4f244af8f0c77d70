"""A state-space relaxation: ideals of the graph without the units that hang on it."""
