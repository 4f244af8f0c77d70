"""The header of a GGUF file: its metadata, and the type, shape and size of every tensor.

Weights are never read, and nothing is allocated for a length that the file cannot hold. The format
is that of ``docs/gguf.md`` in ggml, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fx_bridge.files.mapped import StoredTensor, damaged, distinct, mapped
from fx_bridge.files.stored_types import GGML_NUMBERS
from solver import PartitionError
from solver.model.text import shortened, shown

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS: Final[Mapping[int, struct.Struct]] = {
    number: struct.Struct("<" + code) for number, code in enumerate("BbHhIif?")
} | {10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d")}
"""By the number of a type of values."""
_LENGTH: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<I")
_MOST_NUMBERS: Final = 2**16
"""Longest array of numbers that is kept: those by layer are short, those of tokens are not read."""
_MOST_DIMENSIONS: Final = 4
_SPLIT: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensors of a model in one or several files, of which `path` is the first.

    Texts in arrays, such as the tokens of a vocabulary, are numbers of entries in the metadata.
    """

    path: str
    metadata: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]


def read_gguf(path: str | os.PathLike[str]) -> GgufHeader:
    """Read the header of a model, and those of its other parts if it is split into files.

    A part that is missing, no GGUF file, cut off, or inconsistent is refused.
    """
    parts = list(_parts(Path(path)))
    found = [_Reader.read(part) for part in parts]
    metadata = found[0][0]
    count = metadata.get("split.count", len(parts))
    if count not in (0, len(parts)):
        raise PartitionError(
            f"{shortened(parts[0])}: it is a part of {shown(count)} files without a name such as "
            "NAME-00001-of-00003.gguf; give the first part under its own name"
        )
    for number, (part, (own, _)) in enumerate(zip(parts, found, strict=True), 1):
        if own.get("split.no", number - 1) != number - 1:
            raise PartitionError(
                f"{shortened(part)}: it is called part {number} and holds another one, "
                f"split.no = {shown(own['split.no'])}; fetch the parts again under their own names"
            )
    tensors = distinct((tensor for _, own in found for tensor in own), shortened(parts[0]))
    return GgufHeader(str(parts[0]), MappingProxyType(metadata), tensors)


def _parts(path: Path) -> Iterator[Path]:
    """Yield the files of a model, the first first."""
    match = _SPLIT.search(path.name)
    if match is None or not int(match[2]):
        yield path
        return
    for number in range(1, int(match[2]) + 1):
        part = path.with_name(f"{path.name[: match.start()]}-{number:05}-of-{match[2]}.gguf")
        if not part.is_file():
            raise PartitionError(
                f"{shortened(path)}: part {number} of {int(match[2])} is missing; put "
                f"{shown(part.name)} beside it"
            )
        yield part


class _Reader:
    def __init__(self, data: mmap.mmap, where: str) -> None:
        self._data = data
        self._at = 0
        self._where = where

    @classmethod
    def read(cls, path: Path) -> tuple[dict[str, Any], list[StoredTensor]]:
        """Return metadata and tensors of one file."""
        with mapped(path, "a .gguf file") as data:
            return cls(data, shortened(path))._header()

    def _header(self) -> tuple[dict[str, Any], list[StoredTensor]]:
        if self._bytes(4, "its magic") != _MAGIC:
            raise PartitionError(f"{self._where}: it does not begin with GGUF; give a .gguf file")
        version = self._number(_COUNT, "its version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            what = "it is big-endian" if swapped else f"it has version {version} of GGUF"
            raise PartitionError(
                f"{self._where}: {what}; versions 2 and 3, little-endian, can be read; convert it "
                "again with a current llama.cpp"
            )
        tensors = self._number(_LENGTH, "the number of tensors")
        pairs = self._number(_LENGTH, "the number of keys")
        # A key takes a length, a type and a value; a tensor a length, and five numbers.
        self._check_room(13 * pairs, f"{pairs} keys")
        self._check_room(32 * tensors, f"{tensors} tensors")
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._text("a key")
            metadata[key] = self._value(self._number(_COUNT, key), key)
        found = [self._tensor() for _ in range(tensors)]
        self._check_data(metadata, found)
        return metadata, [tensor for tensor, _ in found]

    def _check_data(
        self, metadata: Mapping[str, Any], found: list[tuple[StoredTensor, int]]
    ) -> None:
        """Raise PartitionError if a tensor lies beyond the end of the file."""
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment < 2**20:
            raise damaged(self._where, f"general.alignment is {shown(alignment)}")
        start = -(-self._at // alignment) * alignment
        for tensor, offset in found:
            end = start + offset + tensor.size_bytes
            if end > len(self._data):
                raise damaged(
                    self._where,
                    f"tensor {shown(tensor.name)} ends at byte {end}, and the file at "
                    f"{len(self._data)}",
                )

    def _tensor(self) -> tuple[StoredTensor, int]:
        """Return a tensor, and where its data begins."""
        name = self._text("the name of a tensor")
        dimensions = self._number(_COUNT, name)
        if dimensions > _MOST_DIMENSIONS:
            raise damaged(self._where, f"tensor {shown(name)} has {dimensions} dimensions")
        shape = tuple(self._number(_LENGTH, name) for _ in range(dimensions))
        number = self._number(_COUNT, name)
        offset = self._number(_LENGTH, name)
        if number not in GGML_NUMBERS:
            raise PartitionError(
                f"{self._where}: tensor {shown(name)} has type {number}, which is unknown; the "
                f"types are {', '.join(kind.name for kind in GGML_NUMBERS.values())}"
            )
        kind = GGML_NUMBERS[number]
        if not prod(shape) or not shape or shape[0] % kind.entries:
            raise damaged(
                self._where,
                f"tensor {shown(name)} of type {kind.name} has shape {'x'.join(map(str, shape))}, "
                f"whose first size is no multiple of {kind.entries}",
            )
        return StoredTensor(name, kind.name, shape, kind.size_bytes(prod(shape))), offset

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._text(key)
        if kind != _ARRAY:
            return self._number(self._scalar(kind, key), key)
        kind = self._number(_COUNT, key)
        count = self._number(_LENGTH, key)
        if kind == _STRING:
            self._check_room(8 * count, f"{count} texts of key {shown(key)}")
            for _ in range(count):
                self._skip(self._number(_LENGTH, key), key)
            return count
        scalar = self._scalar(kind, key)
        data = self._bytes(count * scalar.size, key)
        if count > _MOST_NUMBERS:
            return count
        return tuple(value for (value,) in scalar.iter_unpack(data))

    def _scalar(self, kind: int, key: str) -> struct.Struct:
        if kind not in _SCALARS:
            nested = "an array in an array" if kind == _ARRAY else f"a value of type {kind}"
            why = f"key {shown(key)} holds {nested}, which GGUF does not have"
            raise damaged(self._where, why)
        return _SCALARS[kind]

    def _text(self, what: str) -> str:
        return self._bytes(self._number(_LENGTH, what), what).decode("utf-8", "replace")

    def _number(self, form: struct.Struct, what: str) -> Any:
        self._check_room(form.size, what)
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def _bytes(self, count: int, what: str) -> bytes:
        start = self._at
        self._skip(count, what)
        return self._data[start : self._at]

    def _skip(self, count: int, what: str) -> None:
        self._check_room(count, what)
        self._at += count

    def _check_room(self, count: int, what: str) -> None:
        if count > len(self._data) - self._at:
            raise damaged(self._where, f"it ends within {shown(what)}")
