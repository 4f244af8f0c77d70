"""Contents of a report as plain data."""
