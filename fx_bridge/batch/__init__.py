"""The batch dimension of every value, and graphs of another batch size."""
