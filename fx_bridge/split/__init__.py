"""Colocation of operators; graphs split by plans, checked, and read as stages."""
