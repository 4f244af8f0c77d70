"""Plans as other programs write them, and for them."""
