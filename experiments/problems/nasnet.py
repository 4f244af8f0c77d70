"""NASNet-like graphs, with the cells of the published network and their measured times.

B. Zoph, V. Vasudevan, J. Shlens, Q. V. Le, "Learning Transferable Architectures for Scalable
Image Recognition", CVPR 2018, figure 4: NASNet-A's normal and reduction cells. Every cell reads the
two cells before it. With 4 normal cells a stage this is NASNet mobile, with the same operators as
PipeDream's profile of it (921); with 6, as in NASNet large, 1,251.

Times and sizes follow that profile (batch of 64, float32): about a third of a millisecond for
nearly every operator, more where images are large, none for sums and concatenations. Values are
transferred to host memory at 1 GiB/s, so that a cut costs as much as dozens of operators. A node
occupies twice its value (activation and gradient).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from experiments.problems.synthetic import Draws, GraphBuilder, SyntheticGraph
from solver import GiB, Interconnect, Link

_BATCH: Final = 64
_FLOAT32: Final = 4
_STAGES: Final = 3
_NORMAL_CELL: Final = 55
_OUTSIDE: Final = 921 - 4 * _STAGES * _NORMAL_CELL
"""Operators outside normal cells: stem, reductions, adjustments, auxiliary and final head."""


@dataclass(frozen=True, slots=True)
class _Value:
    """An operator's output: its channels, and pixels along a side."""

    name: str
    channels: int
    side: int


class _Network:
    def __init__(self, seed: int) -> None:
        self.builder = GraphBuilder()
        self.draws = Draws(seed)

    def op(
        self, label: str, reads: tuple[_Value, ...], channels: int, side: int, *, extra_ns: int = 0
    ) -> _Value:
        """Add an operator with the profile's time for its size."""
        value_bytes = _BATCH * channels * side * side * _FLOAT32
        latency_ns = self.draws.between(270_000, 370_000) + value_bytes // 100 + extra_ns
        return self._add(label, reads, channels, side, latency_ns)

    def free(self, label: str, reads: tuple[_Value, ...], channels: int, side: int) -> _Value:
        """Add a sum, a concatenation or the like, of time zero in the profile."""
        return self._add(label, reads, channels, side, 0)

    def _add(
        self, label: str, reads: tuple[_Value, ...], channels: int, side: int, latency_ns: int
    ) -> _Value:
        value_bytes = _BATCH * channels * side * side * _FLOAT32
        names = tuple(dict.fromkeys(read.name for read in reads))
        name = self.builder.add(label, names, latency_ns, value_bytes, 2 * value_bytes)
        return _Value(name, channels, side)

    def separable(self, source: _Value, size: int, channels: int, side: int) -> _Value:
        """Add relu and separable convolution twice: 8 operators."""
        value = self.op("relu", (source,), source.channels, source.side)
        for turn in range(2):
            if turn:
                value = self.op("relu", (value,), channels, side)
            # Some large depthwise kernels are several times slower in the profile.
            slow_ns = 1_300_000 if size > 3 and self.draws.chance(200) else 0
            value = self.op(f"depthwise{size}", (value,), value.channels, side, extra_ns=slow_ns)
            value = self.op("pointwise", (value,), channels, side)
            value = self.op("norm", (value,), channels, side)
        return value

    def adjusted(self, source: _Value, channels: int) -> _Value:
        """Add relu, 1 x 1 convolution and norm: 3 operators."""
        value = self.op("relu", (source,), source.channels, source.side)
        value = self.op("convolution", (value,), channels, source.side)
        return self.op("norm", (value,), channels, source.side)

    def halved(self, source: _Value, channels: int, side: int) -> _Value:
        """Add a factorised reduction: 8 operators."""
        value = self.op("relu", (source,), source.channels, source.side)
        left = self.op("pool", (value,), source.channels, side)
        left = self.op("convolution", (left,), channels // 2, side)
        right = self.op("pad", (value,), source.channels, source.side)
        right = self.op("pool", (right,), source.channels, side)
        right = self.op("convolution", (right,), channels - channels // 2, side)
        both = self.free("concat", (left, right), channels, side)
        return self.op("norm", (both,), channels, side)

    def aligned(self, before: _Value, channels: int, side: int) -> _Value:
        """Resize the cell before the last to the side of the last one."""
        if before.side == side:
            return self.adjusted(before, channels)
        return self.halved(before, channels, side)

    def total(self, left: _Value, right: _Value) -> _Value:
        return self.free("sum", (left, right), left.channels, left.side)

    def concat(self, *values: _Value) -> _Value:
        first = values[0]
        return self.free("concat", values, len(values) * first.channels, first.side)

    def cell_parts(
        self, channels: int, side: int
    ) -> tuple[Callable[[_Value, int], _Value], Callable[[_Value], _Value]]:
        """Return functions that add a separable convolution and a pool to a cell."""
        return (
            lambda source, size: self.separable(source, size, channels, side),
            lambda source: self.op("pool", (source,), channels, side),
        )

    def normal_cell(self, before: _Value, current: _Value, channels: int) -> _Value:
        """Add a normal cell: 55 operators, 60 if the cell before has another side."""
        side = current.side
        p = self.aligned(before, channels, side)
        h = self.adjusted(current, channels)
        separable, pool = self.cell_parts(channels, side)
        return self.concat(
            p,
            self.total(separable(h, 5), separable(p, 3)),
            self.total(separable(p, 5), separable(p, 3)),
            self.total(pool(h), p),
            self.total(pool(p), pool(p)),
            self.total(separable(h, 3), h),
        )

    def reduction_cell(self, before: _Value, current: _Value, channels: int) -> _Value:
        """Add a reduction cell: 56 operators; the first 53, the second 61."""
        h = self.adjusted(current, channels)
        # The first cell reads the stem twice, once unadjusted.
        p = before if before == current else self.aligned(before, channels, h.side)
        separable, pool = self.cell_parts(channels, (h.side + 1) // 2)
        first = self.total(separable(h, 5), separable(p, 7))
        second = self.total(pool(h), separable(p, 7))
        third = self.total(pool(h), separable(p, 5))
        fourth = self.total(pool(first), second)
        fifth = self.total(separable(first, 3), pool(h))
        return self.concat(second, third, fourth, fifth)


def nasnet(operators: int, seed: int) -> SyntheticGraph:
    """Return a NASNet-like network with the nearest number of operators in whole cells."""
    each = _STAGES * _NORMAL_CELL
    repeats = max(1, (operators - _OUTSIDE + each // 2) // each)
    net = _Network(seed)
    image = net.free("image", (), 3, 224)
    stem = net.op("stem.convolution", (image,), 32, 111, extra_ns=8_000_000)
    stem = net.op("stem.norm", (stem,), 32, 111)
    before, current = stem, net.reduction_cell(stem, stem, 11)
    before, current = current, net.reduction_cell(before, current, 22)
    for stage, channels in enumerate((44, 88, 176)):
        if stage:
            before, current = current, net.reduction_cell(before, current, channels)
        for _ in range(repeats):
            before, current = current, net.normal_cell(before, current, channels)
        if stage == 1:
            _auxiliary_head(net, current)
    _head(net, current)
    return SyntheticGraph(
        tuple(net.builder.operators),
        interconnect=Interconnect(Link(GiB), charging="host_staged"),
        memory_model="weights",
    )


def _auxiliary_head(net: _Network, source: _Value) -> None:
    """Add the auxiliary classifier: 11 operators."""
    value = net.op("auxiliary.relu", (source,), source.channels, source.side)
    value = net.op("auxiliary.pool", (value,), source.channels, 5)
    for channels in (128, 768):
        value = net.op("auxiliary.convolution", (value,), channels, 5 if channels == 128 else 1)
        value = net.op("auxiliary.norm", (value,), channels, value.side)
        value = net.op("auxiliary.relu", (value,), channels, value.side)
    size = net.free("auxiliary.size", (value,), 1, 1)
    value = net.free("auxiliary.view", (size, value), 768, 1)
    net.op("auxiliary.linear", (value,), 1000, 1)


def _head(net: _Network, source: _Value) -> None:
    """Add the classifier: 6 operators."""
    value = net.free("relu", (source,), source.channels, source.side)
    value = net.free("mean", (value,), source.channels, 1)
    left = net.free("size", (value,), 1, 1)
    value = net.free("view", (left, value), source.channels, 1)
    value = net.free("dropout", (value,), source.channels, 1)
    net.op("linear", (value,), 1000, 1)
