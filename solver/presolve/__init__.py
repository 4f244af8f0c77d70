"""The problem restated: units, dominance, kinds of devices; each step with its proof."""
