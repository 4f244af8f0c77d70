"""Models and their example calls: inputs, state, caches and messages."""
