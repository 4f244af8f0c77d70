"""Small models with random weights that are hard to capture, a file for each kind."""
