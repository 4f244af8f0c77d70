"""Stages on several processes: the values sent between them, and the steps of a batch."""
