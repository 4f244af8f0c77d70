"""Processes of this machine: workers, limits, Ctrl-C, and what computes here."""
