"""The commands of ``fxpartition``: their options, what they print, how they end."""
