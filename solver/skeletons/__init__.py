"""A bound from the ideals of what is left without units that may run at almost any time."""
