"""Where the samples of a batch are in every value, and graphs of another batch size."""
