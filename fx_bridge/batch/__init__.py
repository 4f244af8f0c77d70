"""The batch dimension of every value of a graph, and specifications of microbatches."""
