"""What a model remembers in Python: found, put back after each run of it, told."""
