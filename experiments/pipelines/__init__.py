"""Pipelines of real processes: jobs, runs, and predictions compared with measurements."""
