"""From a PyTorch model to an operator graph, and from a plan back to submodules that run."""
