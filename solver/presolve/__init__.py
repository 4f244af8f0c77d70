"""The problem restated: units, dominance, symmetry, kinds of devices; each step with its proof."""
