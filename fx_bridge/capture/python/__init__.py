"""The Python code of a model during a trace: branches, autograd functions, transforms."""
