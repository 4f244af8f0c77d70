"""Plain data as compressed texts."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Final

from solver import PartitionError
from solver.io.json_fields import parse_json

_LEVEL: Final = 6
_MOST_BYTES: Final = 1 << 30


def pack(data: object) -> str:
    """Return plain data as compressed JSON in ASCII."""
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"), _LEVEL)).decode("ascii")


def unpack(packed: str, what: str) -> Any:
    """Invert :func:`pack`; errors name the data `what`."""
    try:
        unpacking = zlib.decompressobj()
        # A few bytes may unpack to more than fits memory.
        text = unpacking.decompress(base64.b64decode(packed), _MOST_BYTES)
        if not unpacking.eof:
            raise ValueError("cut off, or too long")
        return parse_json(text, what)
    except (zlib.error, ValueError, TypeError) as error:
        raise PartitionError(f"{what} cannot be unpacked ({error})") from None
