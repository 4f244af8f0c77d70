"""Cells of an experiment, each answered once and kept in one file."""
