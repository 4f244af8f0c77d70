"""Steps of a search: each reads the state and yields findings."""
