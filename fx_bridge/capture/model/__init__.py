"""What a model and its example call are made of: inputs, state, caches, messages about them."""
