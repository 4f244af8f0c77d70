"""What takes turns in a search: each step reads the state and yields findings."""
