"""Captures of models of any kind as graphs in which every value is known."""
