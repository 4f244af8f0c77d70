"""Bounds where operators may run again."""
