"""Command lines: execution, output, progress, exit codes."""
