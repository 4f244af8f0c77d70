"""Worker processes, time limits, Ctrl-C, and the environment."""
