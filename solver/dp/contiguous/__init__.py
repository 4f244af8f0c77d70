"""The best cut of one order of units: the dynamic program on nested sets."""
