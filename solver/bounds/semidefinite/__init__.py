"""A bound from a semidefinite relaxation: which units share a device, whatever the order."""
