"""Families of sets of devices as bits, for many families at once.

A set with c_k devices of each kind k has number sum(c_k * stride_k) in mixed radix, so one more
device of kind k turns set number b into b + stride_k: a whole family grows by a shift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from solver.model.arrays import Bools

Words = npt.NDArray[np.uint64]
"""Families in columns, 64 sets in a row."""

_WORD = 64


class SetBits:
    """The sets of at most `most` of devices of several kinds, given the number of each kind.

    By number of a set, `counts` has its devices of each kind, and `usable` is False for sets larger
    than `most`. `strides` is by kind the difference that one device makes to the number of a set. A
    family has `words` rows.
    """

    def __init__(self, limits: Sequence[int], most: int) -> None:
        sizes = [limit + 1 for limit in limits]
        self.strides = tuple(math.prod(sizes[:kind]) for kind in range(len(sizes)))
        every = np.arange(math.prod(sizes))
        self.counts = np.stack(np.unravel_index(every, sizes, order="F"), axis=1)
        self.sizes = self.counts.sum(axis=1)
        self.usable = self.sizes <= most
        self.words = -(-len(every) // _WORD)
        # By kind, the sets that can grow by a device of it.
        self._may_grow = [
            self.pack(((self.counts[:, kind] < limit) & (self.sizes < most))[:, None])
            for kind, limit in enumerate(limits)
        ]

    def pack(self, flags: Bools) -> Words:
        """Return families as words, given the membership of each set (row) in each one (column)."""
        padded = np.zeros((self.words * _WORD, flags.shape[1]), dtype=np.bool_)
        padded[: len(flags)] = flags
        packed = np.packbits(padded, axis=0, bitorder="little")
        words = np.ascontiguousarray(packed.T).view("<u8").T
        return np.ascontiguousarray(words, dtype=np.uint64)

    def unpack(self, family: Words) -> Bools:
        """Return the membership of each set in one family, given as its words."""
        data = np.ascontiguousarray(family.astype("<u8")).view(np.uint8)
        return np.unpackbits(data, count=len(self.sizes), bitorder="little").astype(np.bool_)

    def of_size_at_most(self, size: int) -> Words:
        """Return the family of all sets of at most `size` devices, as one column."""
        return self.pack((self.sizes <= size)[:, None])

    def grown(self, families: Words, kind: int) -> Words:
        """Return each family with a device of `kind` added to each of its sets."""
        whole, bits = divmod(self.strides[kind], _WORD)
        kept = families & self._may_grow[kind]
        result = np.zeros_like(kept)
        count = self.words - whole
        result[whole:] = kept[:count] << np.uint64(bits)
        if bits:
            result[whole + 1 :] |= kept[: count - 1] >> np.uint64(_WORD - bits)
        return result
