"""Costs of operators, counted or measured: times, workspaces, backward passes."""
