"""The header of a safetensors file: the type, shape and size of every tensor.

Weights are never read. Entries are read one by one from the mapped file, so that a damaged header
takes no memory. The format is that of ``huggingface/safetensors`` (2022): eight bytes of length, a
JSON object, and the data.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

from fx_bridge.files.gguf_header import StoredTensor
from solver import PartitionError
from solver.io.files import check_file
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
_ENTRY_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
}
"""Bits of an entry by type; the sizes of other types are read and not checked."""


def read_safetensors(path: str | os.PathLike[str]) -> tuple[StoredTensor, ...]:
    """Read the header of a safetensors file.

    Raises
    ------
    PartitionError
        If the file is missing, no safetensors file, cut off, or inconsistent.
    """
    check_file(path, "a safetensors file")
    where, source = shortened(path), Path(path)
    try:
        with source.open("rb") as file:
            size_bytes = source.stat().st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size_bytes < _LENGTH_BYTES or length > size_bytes - _LENGTH_BYTES:
                file.seek(0)
                is_pointer = file.read(20).startswith(b"version https://git-")
                why = (
                    "it is a pointer of Git LFS; fetch the file itself (git lfs pull)"
                    if is_pointer
                    else f"its header of {length} bytes ends beyond the file of {size_bytes}; it "
                    "is cut off or no safetensors file, fetch it again"
                )
                raise PartitionError(f"{where}: {why}")
            if length > _MOST_BYTES:
                raise _damaged(where, f"its header has {length} bytes, which none needs")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                found = tuple(_tensors(data, _LENGTH_BYTES + length, where))
    except OSError as error:
        reason = error.strerror or str(error)
        raise PartitionError(f"{where}: {reason}; give a safetensors file") from None
    return found


def _tensors(data: mmap.mmap, start: int, where: str) -> Iterator[StoredTensor]:
    """Yield the tensors of a file whose data begins at byte `start`."""
    at, names, total_bytes = _LENGTH_BYTES, set(), 0
    if data[at : at + 1] != b"{":
        raise _damaged(where, "its header is no JSON object")
    at += 1
    is_empty = data[at:start].strip() == b"}" if start - at < _MOST_ENTRY else False
    while not is_empty:
        ends = (min(start, at + most) for most in (_MOST_ENTRY, _MOST_METADATA))
        match = next(filter(None, (_ENTRY.match(data, at, end) for end in ends)), None)
        if match is None:
            raise _damaged(where, f"its header has no tensor at byte {at}")
        if match[1] != b'"__metadata__"':
            tensor = _tensor(match, len(data) - start, where)
            if tensor.name in names:
                raise _damaged(where, f"two tensors are called {shown(tensor.name)}")
            names.add(tensor.name)
            total_bytes += tensor.size_bytes
            yield tensor
        at = match.end()
        if match[3] == b"}":
            break
    if total_bytes != len(data) - start:
        raise _damaged(
            where, f"its tensors have {total_bytes} bytes, and its data {len(data) - start}"
        )


def _tensor(match: re.Match[bytes], most: int, where: str) -> StoredTensor:
    """Return the tensor of an entry; `most` is the number of bytes of all data."""
    if len(match[0]) > _MOST_ENTRY:
        raise _damaged(where, f"an entry of its header has {len(match[0])} bytes")
    try:
        name, entry = json.loads(match[1]), json.loads(match[2])
    except (ValueError, RecursionError):
        raise _damaged(where, f"entry {shown(match[1])} of its header is no JSON") from None
    kind, shape = entry.get("dtype"), entry.get("shape")
    offsets = entry.get("data_offsets")
    if (
        not isinstance(kind, str)
        or not _are_naturals(shape)
        or not _are_naturals(offsets)
        or len(offsets) != 2
        or not offsets[0] <= offsets[1]
    ):
        raise _damaged(where, f"tensor {shown(name)} has no type, shape and offsets")
    begin, end = offsets
    if end > most:
        raise PartitionError(
            f"{where}: tensor {shown(name)} ends at byte {shown(end)} of the data, which has "
            f"{most}; it is cut off, fetch it again"
        )
    if kind in _ENTRY_BITS and prod(shape) * _ENTRY_BITS[kind] != 8 * (end - begin):
        sizes = "x".join(map(str, shape)) or "()"
        raise _damaged(
            where, f"tensor {shown(name)} of shape {shortened(sizes)} has {end - begin} bytes"
        )
    return StoredTensor(name, kind, tuple(shape), end - begin)


def _are_naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _damaged(where: str, why: str) -> PartitionError:
    return PartitionError(f"{where}: {why}; the file is damaged, fetch it again")
