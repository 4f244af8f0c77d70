"""The header of a safetensors file: the type, shape and size of every tensor.

Weights are never read, and entries one by one from the mapped file, so that a damaged header takes
no memory. The format is that of ``huggingface/safetensors`` (2022): a length in eight bytes, a JSON
object, and the data.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterator
from math import prod
from typing import Any, Final

from fx_bridge.files.mapped import StoredTensor, damaged, distinct, mapped
from solver.model.text import shortened, shown

_LENGTH_BYTES: Final = 8
_MOST_BYTES: Final = 100_000_000
"""Longest header that safetensors itself reads."""
_MOST_ENTRY: Final = 4096
_MOST_METADATA: Final = 2**22
_STRING: Final = rb'"(?:[^"\\]|\\.)*+"'
# Possessive, so that nothing is remembered of what has matched.
_ENTRY: Final = re.compile(
    rb"\s*+(" + _STRING + rb")\s*+:\s*+(\{(?:[^{}\"]|" + _STRING + rb")*+\})\s*+([,}])", re.DOTALL
)
_BITS: Final = re.compile(r"[A-Z]+(\d+)")


def read_safetensors(path: str | os.PathLike[str]) -> tuple[StoredTensor, ...]:
    """Read the header of a safetensors file; refuse one that is cut off or inconsistent."""
    where = shortened(path)
    with mapped(path, "a safetensors file") as data:
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        if length > min(len(data) - _LENGTH_BYTES, _MOST_BYTES):
            raise damaged(where, f"a header of {length} bytes is in a file of {len(data)}")
        return distinct(_tensors(data, _LENGTH_BYTES + length, where), where)


def _tensors(data: mmap.mmap, start: int, where: str) -> Iterator[StoredTensor]:
    """Yield the tensors of a file whose data begins at byte `start`."""
    at, total_bytes = _LENGTH_BYTES + 1, 0
    if data[at - 1 : at] != b"{":
        raise damaged(where, "its header is no JSON object")
    is_last = data[at : min(start, at + _MOST_ENTRY)].strip() == b"}"
    while not is_last:
        ends = (min(start, at + most) for most in (_MOST_ENTRY, _MOST_METADATA))
        match = next(filter(None, (_ENTRY.match(data, at, end) for end in ends)), None)
        if match is None:
            raise damaged(where, f"its header has no tensor at byte {at}")
        if match[1] != b'"__metadata__"':
            tensor = _tensor(match, len(data) - start, where)
            total_bytes += tensor.size_bytes
            yield tensor
        at, is_last = match.end(), match[3] == b"}"
    if total_bytes != len(data) - start:
        raise damaged(where, f"its tensors have {total_bytes} bytes of {len(data) - start}")


def _tensor(match: re.Match[bytes], most: int, where: str) -> StoredTensor:
    """Return the tensor of an entry; `most` is the number of bytes of all data."""
    try:
        name, entry = json.loads(match[1]), json.loads(match[2])
    except (ValueError, RecursionError):
        raise damaged(where, f"entry {shown(match[1])} of its header is no JSON") from None
    kind, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    are_natural = _are_naturals(shape) and _are_naturals(offsets)
    if not isinstance(kind, str) or not are_natural or len(offsets) != 2:
        raise damaged(where, f"tensor {shown(name)} has no type, shape and offsets")
    begin, end = offsets
    bits = 8 if kind == "BOOL" else int(found[1][:4]) if (found := _BITS.match(kind)) else None
    is_other = bits is not None and prod(shape) * bits != 8 * (end - begin)
    if not begin <= end <= most or is_other:
        sizes = shortened(f"{kind} {shape}")
        raise damaged(where, f"tensor {shown(name)}, {sizes}, is at bytes {shown(offsets)}")
    return StoredTensor(name, kind, tuple(shape), end - begin)


def _are_naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
