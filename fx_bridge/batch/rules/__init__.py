"""Rules of operators for the batch dimension."""
