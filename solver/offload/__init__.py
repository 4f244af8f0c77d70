"""Models that do not fit: units resident on a device, streamed from the host, or run there."""
