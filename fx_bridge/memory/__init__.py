"""What is allocated and released while a graph runs, forward, backward and in an optimiser."""
