"""The dynamic program over ideals: costs of stages between ideals, searches for chains."""
