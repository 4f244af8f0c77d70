"""GGUF files of any size: a header, and room for tensors that takes no space on disk."""

import os
import struct

TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144),
         "Q6_K": (14, 256, 210), "Q5_K": (13, 256, 176), "Q3_K": (11, 256, 110),
         "MXFP4": (39, 32, 17), "IQ2_XS": (17, 256, 74)}  # fmt: skip


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(item):
    """Return a value with its type in front."""
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + text(item)
    kind = 8 if isinstance(item[0], str) else 5
    data = b"".join(text(x) if kind == 8 else struct.pack("<i", x) for x in item)
    return struct.pack("<IIQ", 9, kind, len(item)) + data


def write_gguf(path, metadata, tensors, *, version=3, alignment=32):
    """Write a file of `tensors`, which are (name, type, shape)."""
    header = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    header += b"".join(text(key) + value(item) for key, item in metadata.items())
    offset = 0
    for name, kind, shape in tensors:
        number, entries, block_bytes = TYPES[kind]
        header += text(name) + struct.pack("<I", len(shape))
        header += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", number, offset)
        size = block_bytes
        for length in shape:
            size *= length
        offset += -(-size // entries // alignment) * alignment
    path.write_bytes(header)
    os.truncate(path, -(-len(header) // alignment) * alignment + offset)
    return path
