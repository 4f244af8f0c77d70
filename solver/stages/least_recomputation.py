"""The least time added by recomputation so that the stages of a device fit.

Every part of a region on a stage has its choices (:mod:`solver.stages.recompute_choices`), so this
is a multiple-choice knapsack (Sinha and Zoltners, "The multiple-choice knapsack problem",
Operations Research 27, 1979), except for peaks: while a part runs backward, the bytes kept for that
microbatch by the parts before it still exist, but not those of the parts after it. With f
microbatches in flight a stage holds

    sum over parts of (f - 1) kept + sent, and the largest over parts of (kept before + its peak).

The peak of a part is that of its backward pass or, if more, that of its recomputation. With S the
bytes that all its operators save, the latter is for a recomputed operator t at least

    R(t) = S + storage(t) - kept(t) + workspace(t) + G(t) - sum over recomputed u > t of made(u),

where made(u) is the saved bytes of u without numbers, and G(t) is the least sum of gradients while
any operator runs backward that may miss something and is not before those that save t. *Proof.* In
R(t) of ``docs/definition.md`` each operator of the region holds at least its saved bytes, but
numbers alone if it is recomputed behind t; t has the rest of its storage besides; and gradients are
those at the last operator that misses something, which is not before any that saves t. ∎ Views run
again with their storages: those behind t count as recomputed. In the execution order a further
recomputed u lowers the largest R(t) by made(u), or R(u) is the largest, so that one number is
enough to compare choices. What a stage holds while it runs forward is left out.

Labels of a dynamic program over the parts, from the last one on, have time, the sum, and the peak.
For a price of a byte, the losses against the cheapest choices of all parts add up; labels that
lose more than a slack are dropped. If a plan among the labels of a slack takes no more than the
relaxation plus that slack, it is optimal; if there is none, no plan is this short, and the slack is
doubled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solver.model.arrays import Floats, Ints
from solver.stages.pareto import lower_hull, pareto
from solver.stages.recompute_choices import Part, PartChoices, RecomputeChoices

_MOST_LABELS = 20_000
_DOUBLINGS = 40
_FIRST = 1 / 64
"""The first slack, as a part of the time added by the slowest choices."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class StageParts:
    """The parts of a stage.

    `always_bytes` are buffers for received gradients. In the execution order, each part has its
    choices, and its least bytes while it runs backward.
    """

    in_flight: int
    always_bytes: int
    choices: Sequence[PartChoices]
    peaks_bytes: Sequence[int]

    @classmethod
    def of(cls, choices: RecomputeChoices, parts: Sequence[Part], in_flight: int) -> StageParts:
        """Return the parts of a stage with their choices."""
        return cls(
            in_flight,
            sum(map(choices.buffers_bytes, parts)),
            [choices.of(part) for part in parts],
            [choices.backward_bytes(part) for part in parts],
        )


class Chosen(NamedTuple):
    """A choice for all parts: its time, the least bytes without buffers, recomputed operators."""

    extra_ns: int
    held_bytes: int
    again: frozenset[int]


@dataclass(frozen=True, slots=True)
class Least:
    """The time of any choice that fits, at least, and the best choices, the shortest first.

    The bound is infinite if nothing fits.
    """

    bound_ns: float
    found: tuple[Chosen, ...]


class _Labels(NamedTuple):
    """Time, sum and peak by label, and its origin: a previous label and a choice."""

    extra_ns: Ints
    sum_bytes: Ints
    peak_bytes: Ints
    before: Ints
    choice: Ints

    @property
    def bytes(self) -> Ints:
        return self.sum_bytes + self.peak_bytes

    def chosen(self, own: Ints) -> _Labels:
        return _Labels(*(column[own] for column in self))


class _Layer(NamedTuple):
    """A part in the order of the program, the last one of a stage first."""

    choices: PartChoices
    in_flight: int
    peak_bytes: int
    is_last: bool

    @property
    def bytes(self) -> Ints:
        """Bytes held by each choice, without the part's own peak."""
        _, kept, sent, *_ = self.choices.amounts.T
        found: Ints = (self.in_flight - self.is_last) * kept + sent
        return found


def least_recomputation(stages: Sequence[StageParts], free_bytes: int, most: int = 1) -> Least:
    """Return the least time of a device's stages in free bytes, and the `most` best choices."""
    layers = [
        _Layer(choices, stage.in_flight, peak_bytes, not number)
        for stage in stages
        for number, (choices, peak_bytes) in enumerate(
            zip(reversed(stage.choices), reversed(stage.peaks_bytes), strict=True)
        )
    ]
    always_bytes = sum(stage.always_bytes for stage in stages)
    return _Program(layers, free_bytes - always_bytes).least(most)


class _Program:
    def __init__(self, layers: list[_Layer], free_bytes: int) -> None:
        self._layers, self._free_bytes = layers, free_bytes
        self._least_bytes = _suffix_sums([int(layer.bytes.min()) for layer in layers])
        self._is_complete = all(layer.choices.is_complete for layer in layers)
        self._price, self._relaxed_ns = self._best_price()
        costs = [layer.choices.amounts[:, 0] + self._price * layer.bytes for layer in layers]
        self._least_costs = _suffix_sums([float(own.min()) for own in costs])

    def least(self, most: int) -> Least:
        nothing = sum(int(layer.choices.amounts[0, 0]) for layer in self._layers)
        slowest = sum(int(layer.choices.amounts[-1, 0]) for layer in self._layers)
        bound_ns = max(float(nothing), self._relaxed_ns)
        slack_ns = max(bound_ns - self._relaxed_ns, 0.0) + 1 + (slowest - nothing) * _FIRST
        for _ in range(_DOUBLINGS):
            limit_ns = self._relaxed_ns + slack_ns
            levels, is_whole = self._labels(limit_ns)
            found = tuple(self._found(levels, most))
            if found and (found[0].extra_ns <= limit_ns or not is_whole):
                bound_ns = float(found[0].extra_ns) if is_whole else bound_ns
                break
            if not is_whole:
                break
            if limit_ns > slowest:
                bound_ns = np.inf
                break
            bound_ns = max(bound_ns, limit_ns)
            slack_ns *= 2
        return Least(bound_ns if self._is_complete else 0.0, found)

    def _best_price(self) -> tuple[float, float]:
        """Return the price of a byte that maximises the relaxation, and its value there."""
        always = sum(layer.peak_bytes for layer in self._layers if layer.is_last)
        always -= self._free_bytes
        groups: dict[tuple[int, int, bool], tuple[_Layer, int]] = {}
        for layer in self._layers:
            key = (id(layer.choices.amounts), layer.in_flight, layer.is_last)
            groups[key] = layer, groups.get(key, (layer, 0))[1] + 1
        prices = np.unique(np.concatenate([[0.0], *(_slopes(own) for own, _ in groups.values())]))
        totals = prices * always
        for layer, count in groups.values():
            time_ns = layer.choices.amounts[:, :1].astype(np.float64)
            costs = time_ns + layer.bytes[:, None].astype(np.float64) * prices
            totals += count * costs.min(axis=0)
        best = int(totals.argmax())
        return float(prices[best]), float(totals[best]) * (1 - _ROUNDING)

    def _labels(self, limit_ns: float) -> tuple[list[_Labels], bool]:
        """Return the labels of each layer within a limit, and True if none of these was dropped."""
        zero = np.zeros(1, dtype=np.int64)
        levels = [_Labels(zero, zero, zero, zero, zero)]
        most_cost = limit_ns + self._price * self._free_bytes
        is_whole = True
        for at, layer in enumerate(self._layers):
            labels = _extended(levels[-1], layer)
            cost = labels.extra_ns + self._price * labels.bytes + self._least_costs[at + 1]
            fits = labels.bytes + self._least_bytes[at + 1] <= self._free_bytes
            labels = labels.chosen(np.flatnonzero(fits & (cost <= most_cost + 1)))
            # The peak of a complete stage goes into the sum.
            if at + 1 == len(self._layers) or self._layers[at + 1].is_last:
                labels = labels._replace(sum_bytes=labels.bytes, peak_bytes=0 * labels.peak_bytes)
            labels = labels.chosen(_best_of(labels))
            if len(labels.extra_ns) > _MOST_LABELS:
                is_whole = False
                cost = labels.extra_ns + self._price * labels.bytes
                labels = labels.chosen(np.sort(np.argsort(cost, kind="stable")[:_MOST_LABELS]))
            levels.append(labels)
        return levels, is_whole

    def _found(self, levels: list[_Labels], most: int) -> Iterator[Chosen]:
        last = levels[-1]
        for number in range(min(most, len(last.extra_ns))):
            again: list[int] = []
            at = number
            for layer, labels in zip(reversed(self._layers), reversed(levels[1:]), strict=True):
                again += layer.choices.again(int(labels.choice[at]))
                at = int(labels.before[at])
            yield Chosen(int(last.extra_ns[number]), int(last.bytes[number]), frozenset(again))


def _best_of(labels: _Labels) -> Ints:
    columns = (labels.extra_ns, labels.bytes, labels.sum_bytes)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    points = ((*row, 0, 0, number) for number, row in enumerate(rows))
    return np.array([point[5] for point in pareto(points)], dtype=np.int64)


def _extended(labels: _Labels, layer: _Layer) -> _Labels:
    extra_ns, kept, sent, early, again = layer.choices.amounts.T
    # Nothing of a stage comes after its last part.
    before = 0 * kept if layer.is_last else kept
    own_bytes = layer.peak_bytes + early + again
    peak_bytes = np.maximum(labels.peak_bytes[:, None] + before, own_bytes)
    count, choices = peak_bytes.shape
    return _Labels(
        (labels.extra_ns[:, None] + extra_ns).ravel(),
        (labels.sum_bytes[:, None] + (layer.in_flight - 1) * kept + sent).ravel(),
        peak_bytes.ravel(),
        np.repeat(np.arange(count), choices),
        np.tile(np.arange(choices), count),
    )


def _slopes(layer: _Layer) -> Floats:
    """Return the prices at which the cheapest choice of a part changes."""
    times = layer.choices.amounts[:, 0].tolist()
    hull = lower_hull(zip(times, layer.bytes.tolist(), strict=True))
    steps = itertools.pairwise(hull)
    return np.array([(last[0] - first[0]) / (first[1] - last[1]) for first, last in steps])


def _suffix_sums(values: list[float]) -> list[float]:
    """Return by index the sum from there on; 0 at the end."""
    return [*itertools.accumulate(reversed(values), initial=0.0)][::-1]
