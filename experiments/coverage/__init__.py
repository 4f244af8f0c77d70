"""Which models can be captured, split and planned."""
