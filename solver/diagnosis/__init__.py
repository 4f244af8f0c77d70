"""Why nothing fits, and the least changes that make a plan possible."""
