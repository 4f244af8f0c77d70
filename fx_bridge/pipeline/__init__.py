"""Stages on several processes: what travels between them, and how a batch goes through."""
