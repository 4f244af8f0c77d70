"""What commands print: output, progress, exit codes."""
