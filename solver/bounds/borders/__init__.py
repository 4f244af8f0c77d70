"""A bound from the borders between articulation units, with indivisible weights."""
