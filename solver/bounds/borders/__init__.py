"""A bound from the borders between articulation units, with weights in their real lumps."""
