"""Published workloads, with their optima."""
