"""Files with a header, mapped so that no weight is read, and refused if they are damaged."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

from solver import PartitionError
from solver.io.files import check_file
from solver.model.text import shortened, shown


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file, with its name and shape as there, and its bytes as stored.

    The type is such as ``"Q4_K"``; in GGUF the fastest dimension is first.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        """Number of entries."""
        return prod(self.shape)


@contextmanager
def mapped(path: str | os.PathLike[str], wanted: str) -> Iterator[mmap.mmap]:
    """Map a file.

    If it is missing, empty, or a pointer to a file, the error asks for the content that is
    `wanted`.
    """
    check_file(path, wanted)
    where = shortened(path)
    try:
        with Path(path).open("rb") as file:
            first = file.read(20)
            if not first:
                raise damaged(where, "the file is empty")
            if first.startswith(b"version https://git-"):
                raise PartitionError(
                    f"{where}: it is a pointer of Git LFS; fetch the file itself (git lfs pull)"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except OSError as error:
        reason = error.strerror or str(error)
        raise PartitionError(f"{where}: {reason}; give {wanted}") from None


def distinct(tensors: Iterable[StoredTensor], where: str) -> tuple[StoredTensor, ...]:
    """Return tensors; PartitionError if two of them have one name."""
    found: dict[str, StoredTensor] = {}
    for tensor in tensors:
        if tensor.name in found:
            raise damaged(where, f"two tensors are called {shown(tensor.name)}")
        found[tensor.name] = tensor
    return tuple(found.values())


def damaged(where: str, why: str) -> PartitionError:
    """Return the refusal of a damaged file."""
    return PartitionError(f"{where}: {why}; it is cut off or damaged, fetch it again")
