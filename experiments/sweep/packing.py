"""Texts of JSON, compressed: as bytes to keep, and as text to send."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Final

from solver import PartitionError
from solver.io.json_fields import parse_json

_LEVEL: Final = 6
_MOST_BYTES: Final = 1 << 30


def pack(data: object) -> bytes:
    """Return plain data as compressed JSON."""
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode("ascii"), _LEVEL)


def unpack(packed: bytes, what: str) -> Any:
    """Return the data that :func:`pack` packed; PartitionError calls it `what`."""
    try:
        unpacking = zlib.decompressobj()
        # A few bytes may unpack to more than there is memory.
        text = unpacking.decompress(packed, _MOST_BYTES)
        if not unpacking.eof:
            raise ValueError("cut off, or too long")
        return parse_json(text, what)
    except (zlib.error, ValueError, TypeError) as error:
        raise PartitionError(f"{what} cannot be unpacked ({error})") from None


def to_text(packed: bytes) -> str:
    """Return packed data as text that a job can carry."""
    return base64.b64encode(packed).decode("ascii")


def from_text(text: str) -> bytes:
    """Return the packed data that :func:`to_text` made text of."""
    return base64.b64decode(text)
