"""Named models, and published configurations on the meta device."""
