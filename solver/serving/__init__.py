"""Plans for models that serve: several graphs, one assignment, and the objectives on offer."""
