"""Units that some best plan keeps together, blocks that plans may exchange, coarse graphs."""
