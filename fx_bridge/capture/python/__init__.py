"""A model's Python code during a trace: branches, autograd functions, transforms."""
