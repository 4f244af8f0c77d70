"""Stages that run operators again in the backward pass, instead of keeping what they made."""
