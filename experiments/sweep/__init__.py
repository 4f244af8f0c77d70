"""Many cells of one experiment, each done once, kept in one file."""
