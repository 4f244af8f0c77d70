"""A bound from prices on the time and the memory of every kind of device."""
