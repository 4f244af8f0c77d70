"""Python state of a model: found, restored after each run, reported."""
