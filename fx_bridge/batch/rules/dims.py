"""The position of the samples of a batch in one value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["batch", "replicated", "partial", "index", "unknown"]
Reduction = Literal["sum", "mean", "max", "min"]


@dataclass(frozen=True, slots=True)
class BatchDim:
    """The relation of one value to the samples of the batch.

    Attributes
    ----------
    kind : str
        ``"batch"``: every sample has entries of its own along dimension `dim`, computed from
        that sample alone and from replicated values, in the same way for all samples.
        ``"replicated"``: independent of the samples and their number.
        ``"partial"``: a reduction over the samples; that of the whole batch is the `reduction`
        of those of its parts, for ``"mean"`` of equal parts.
        ``"index"``: the number of each sample along `dim`, times `inner`.
        ``"unknown"``: undetermined, or samples are mixed; see `reason`.
    dim : int or None
        Not negative. For ``"unknown"`` the dimension that grows with the batch, if one does.
    outer, inner : int
        Dimension `dim` was merged from ``(outer, batch, inner)``; both are 1 if it is the
        batch alone. ``outer == 1`` means that the entries of a sample lie together.
    reduction : {"sum", "mean", "max", "min"} or None
        The merge of the parts of a ``"partial"`` value; None for all others.
    reason : str
        Text for ``"unknown"``; for ``"partial"`` a condition on the merge, mostly none.
    origin : str
        Name of the node where it became unknown.
    mixes : bool
        True if that node certainly mixes samples.
    scale : int
        Step between the numbers of an ``"index"``; 1 for all others.
    """

    kind: Kind
    dim: int | None = None
    outer: int = 1
    inner: int = 1
    reduction: Reduction | None = None
    reason: str = ""
    origin: str = ""
    mixes: bool = False
    scale: int = 1

    @property
    def factor(self) -> int:
        """Entries that each sample has along `dim`."""
        return self.outer * self.inner

    def moved(self, dim: int) -> BatchDim:
        """Return the same in another dimension."""
        return replace(self, dim=dim)

    def __str__(self) -> str:
        if self.kind == "batch":
            merged = f" of ({self.outer}, batch, {self.inner})" if self.factor > 1 else ""
            return f"batch in dimension {self.dim}{merged}"
        if self.kind == "partial":
            return f"partial ({self.reduction})"
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


REPLICATED = BatchDim("replicated")


def batch(dim: int, outer: int = 1, inner: int = 1) -> BatchDim:
    """Return the state of a value with the samples along `dim`."""
    return BatchDim("batch", dim, outer, inner)


def partial(reduction: Reduction, reason: str = "") -> BatchDim:
    """Return the state of a reduction over the samples."""
    return BatchDim("partial", reduction=reduction, reason=reason)


def unknown(reason: str) -> BatchDim:
    """Return the state of a value of unknown relation to the batch."""
    return BatchDim("unknown", reason=reason)


def mixed(reason: str) -> BatchDim:
    """Return the state of a value that mixes samples."""
    return BatchDim("unknown", reason=reason, mixes=True)


def reshaped(
    state: BatchDim, before: Sequence[int], after: Sequence[int], batch_size: int
) -> BatchDim | None:
    """Follow the batch through a view of a contiguous value; None if no dimension holds it.

    Row-major, the position of an entry is ``(a * batch + b) * rows + c`` for sample ``b``. A
    dimension of the result holds the batch if the product of those before it divides the range of
    ``a``, and of those after it divides ``rows``; of several such, for a batch of one, that of
    least factor.
    """
    assert state.dim is not None
    ahead = math.prod(before[: state.dim]) * state.outer
    rows = state.inner * math.prod(before[state.dim + 1 :])
    found: list[tuple[int, int]] = []
    for dim, size in enumerate(after):
        left, right = math.prod(after[:dim]), math.prod(after[dim + 1 :])
        if not left or not right or ahead % left or rows % right:
            continue
        outer, inner = ahead // left, rows // right
        if outer * batch_size * inner == size:
            found.append((outer * inner, dim))
    if not found:
        return None
    _, dim = min(found)
    outer = ahead // math.prod(after[:dim])
    inner = rows // math.prod(after[dim + 1 :])
    return replace(state, dim=dim, outer=outer, inner=inner)
