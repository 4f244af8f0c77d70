"""Plans from hand-made tags, and non-tensors moved next to their readers."""
