"""Lower bounds and stage windows, each with its proof; no bound excludes a better plan."""
