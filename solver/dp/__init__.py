"""Dynamic programs over ideals (down-sets) and sets of devices, exact where ideals are few."""
