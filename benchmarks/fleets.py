"""Fleets of the models of real size: roomy ones, and those where memory binds, by model."""

ROOMY = ("8x80", "4x80+4x24")
TIGHT = {
    "t5-3b": ("8x30", "8x26", "8x22", "4x40+4x16"),
    "llama3-8b": ("8x32", "8x26"),
    "clip-l": ("8x24", "8x16"),
    "gpt2-medium": ("8x5",),
}
