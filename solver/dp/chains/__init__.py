"""Chains of stages over sets of devices."""
