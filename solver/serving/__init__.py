"""Plans for models that serve: several graphs, one assignment, and what a person may ask for."""
