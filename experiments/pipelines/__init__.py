"""Pipelines of real processes: jobs, runs, and what was measured beside what was predicted."""
