"""The command line, the model zoo, comparisons and reports."""
