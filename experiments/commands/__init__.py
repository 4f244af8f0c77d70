"""The commands of ``fxpartition``: options, output and exit codes."""
