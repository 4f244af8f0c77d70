"""Small models with random weights that are hard to capture; importing them loads torch."""
