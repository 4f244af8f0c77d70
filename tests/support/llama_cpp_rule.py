"""Which device llama.cpp gives a layer, by its own rule in float32, with nothing of the project."""

import struct


def float32(value):
    """A number as a C float."""
    return struct.unpack("f", struct.pack("f", value))[0]


def devices_of_layers(layers, shares, offloaded):
    """The device of each layer and, last, of the output: its number, or None for the host."""
    splits, total = [], 0.0
    for share in shares:
        total = float32(total + float32(share))
        splits.append(total)
    splits = [float32(split / total) for split in splits]
    start = max(layers + 1 - offloaded, 0)
    active = min(offloaded, layers + 1)
    found = []
    for layer in range(layers + 1):
        if layer < start or layer - start >= active:
            found.append(None)
            continue
        part = float32(float32(layer - start) / active)
        found.append(next(at for at, split in enumerate(splits) if split > part))
    return found
