"""Models that can be named, and published configurations on the meta device."""
