"""A bound from the borders that can exist between articulation units."""
