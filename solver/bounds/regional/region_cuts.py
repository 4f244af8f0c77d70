"""The least time of the values that leave a set of operators, as a function of its work.

A region is a part of the graph between two articulation units
(:mod:`solver.bounds.regional.markers`). The units of the first stages within it are closed under
ancestors; their work x and the time c of the values that cross their border are bounded together by
minimum cuts: for integers A > 0 and B, the least A c + B x over all closed sets is a minimum cut
(closure problem: Picard, "Maximal closure of a graph", Management Science 22, 1976; a net as a node
of its own: Yang and Wong, "Efficient network flow based min-cut balanced partitioning", ICCAD
1994). Every (A, B) gives a line below all (x, c). The true least time is far from convex in x, so
lines are taken separately for a few cases: whether a value that many operators of the region read
has all its readers inside, and whether the first operator of the heaviest chain is inside.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from solver.model.arrays import Ints
from solver.presolve.minimum_cut import MinimumCut

_LARGEST_SCALE = 1 << 20
_LARGEST_FLOW = 1 << 60
_LINES_PER_CASE = 10
_MOST_SHARED = 2
"""Values with many readers that are divided into cases."""
_LIGHT = 0.25
"""Values below this part of the heaviest are not divided into cases."""


@dataclass(frozen=True, slots=True)
class RegionNet:
    """A value whose crossing counts.

    `producer` is a unit of the region, or -1 for one before it, and consumers are units of it; if
    it `leaves`, some unit after the region reads it too. `time_ns` is the least of one transfer.
    """

    producer: int
    consumers: tuple[int, ...]
    leaves: bool
    time_ns: int


@dataclass(frozen=True, slots=True)
class Region:
    """Units 0, 1, … in a topological order, their work, precedence and nets."""

    work_ns: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    nets: tuple[RegionNet, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """scale * c + slope * x >= value for every closed set of a case."""

    scale: int
    slope: int
    value: int


@dataclass(frozen=True, slots=True)
class LeastCrossing:
    """A lower bound of the crossing time: the least over cases of the highest line."""

    cases: tuple[tuple[Line, ...], ...]

    def at(self, low_ns: Ints, high_ns: Ints) -> Ints:
        """Return lower bounds for all work from `low_ns` to `high_ns`, elementwise."""
        if not self.cases:
            return np.zeros(len(low_ns), dtype=np.int64)
        least = None
        for lines in self.cases:
            case = np.zeros(len(low_ns), dtype=np.int64)
            for line in lines:
                worst = high_ns if line.slope > 0 else low_ns
                case = np.maximum(case, (line.value - line.slope * worst) // line.scale)
            least = case if least is None else np.minimum(least, case)
        assert least is not None
        return least


def least_crossing(region: Region, *, by_work: bool) -> LeastCrossing:
    """Return a lower bound of the crossing time of every closed set of a region.

    With `by_work` cases and amounts of work are distinguished; otherwise the bound is a single
    constant.

    Proof: a closed set S falls into at least one case. Where the case has a shared value cross, its
    time is added and its crossing in the cut is free; otherwise all its readers are in S. Where the
    case has the head of the chain outside, its descendants are outside by closure. In each case the
    line of a minimum cut lies below all (x, c), and S lies above the least case.
    """
    if not region.nets:
        return LeastCrossing(())
    if not by_work:
        line = _Case(region, frozenset(), frozenset(), frozenset()).line(0)
        return LeastCrossing(()) if line is None else LeastCrossing(((line[0],),))
    shared = shared_nets(region)
    head = chain_head(region, set(shared))
    none: frozenset[int] = frozenset()
    head_sides = [(none, none)]
    if head is not None:
        head_sides = [(frozenset([head]), none), (none, frozenset([head]))]
    cases: list[tuple[Line, ...]] = []
    for crossing in itertools.product((True, False), repeat=len(shared)):
        free = frozenset(net for net, crosses in zip(shared, crossing, strict=True) if crosses)
        inside = frozenset(
            unit
            for net, crosses in zip(shared, crossing, strict=True)
            if not crosses
            for unit in region.nets[net].consumers
        )
        for head_inside, outside in head_sides:
            lines = _Case(region, free, inside | head_inside, outside).lines()
            if lines:
                cases.append(lines)
    return LeastCrossing(tuple(cases))


def border_lines(region: Region) -> LeastCrossing:
    """Return a lower bound of the crossing time of every closed set, from a single case."""
    if not region.nets:
        return LeastCrossing(())
    return LeastCrossing((_Case(region, frozenset(), frozenset(), frozenset()).lines(),))


def shared_nets(region: Region) -> list[int]:
    """Return the heaviest values from before the region that several of its units read."""
    heaviest = max(net.time_ns for net in region.nets)
    found = [
        number
        for number, net in enumerate(region.nets)
        if net.producer < 0 and len(net.consumers) > 1 and net.time_ns >= _LIGHT * heaviest
    ]
    found.sort(key=lambda number: -region.nets[number].time_ns)
    return found[:_MOST_SHARED]


def chain_head(region: Region, shared: set[int]) -> int | None:
    """Return the first unit from which a path of heavy values leads out of the region."""
    count = len(region.work_ns)
    heaviest_path = [0] * count
    nets_of: list[list[RegionNet]] = [[] for _ in range(count)]
    for number, net in enumerate(region.nets):
        if net.producer >= 0 and number not in shared:
            nets_of[net.producer].append(net)
    for unit in range(count - 1, -1, -1):
        for net in nets_of[unit]:
            onward = max((heaviest_path[reader] for reader in net.consumers), default=0)
            heaviest_path[unit] = max(
                heaviest_path[unit], net.time_ns if net.leaves else min(net.time_ns, onward)
            )
    heaviest = max(heaviest_path, default=0)
    if heaviest < _LIGHT * max(net.time_ns for net in region.nets):
        return None
    return next(unit for unit in range(count) if heaviest_path[unit] >= heaviest * 0.9)


class _Case:
    """The cut network of a region under the conditions of one case."""

    def __init__(
        self, region: Region, free: frozenset[int], inside: frozenset[int], outside: frozenset[int]
    ) -> None:
        units, nets = len(region.work_ns), len(region.nets)
        self.work = np.array(region.work_ns, dtype=np.int64)
        self.total_work = int(self.work.sum())
        self.times = np.array([net.time_ns for net in region.nets], dtype=np.int64)
        self.given = int(sum(region.nets[number].time_ns for number in free))
        self.units = units
        self.source, self.sink = units + nets, units + nets + 1
        self.costs = self.times.copy()
        self.costs[list(free)] = 0
        total = int(self.costs.sum())
        self.scale = max(1, min(_LARGEST_SCALE, _LARGEST_FLOW // 4 // (total + 1)))
        self.steepest = max(1, _LARGEST_FLOW // 2 // (self.total_work + 1))
        # Arcs of infinite capacity: precedence, net to consumer, forced units.
        tails: list[int] = [target for _, target in region.edges]
        heads: list[int] = [source for source, _ in region.edges]
        for number, net in enumerate(region.nets):
            if number in free:
                continue
            tails += [units + number] * (len(net.consumers) + net.leaves)
            heads += [*net.consumers, self.sink][: len(net.consumers) + net.leaves]
        tails += [self.source] * len(inside)
        heads += inside
        tails += outside
        heads += [self.sink] * len(outside)
        producers = [self.source if net.producer < 0 else net.producer for net in region.nets]
        self.tails: Ints = np.array([*tails, *producers, *range(units), *[self.source] * units])
        self.heads: Ints = np.array(
            [*heads, *range(units, units + nets), *[self.sink] * units, *range(units)]
        )
        self.firm = len(tails)

    def line(self, slope: int) -> tuple[Line, int, int] | None:
        """Return the line of a slope with the work and time of its set; None if no set exists."""
        slope = max(-self.steepest, min(self.steepest, slope))
        weights = abs(slope) * self.work
        none = np.zeros(self.units, dtype=np.int64)
        finite = [self.scale * self.costs, *((weights, none) if slope > 0 else (none, weights))]
        firm = sum(int(part.sum()) for part in finite) + 1
        capacities = np.concatenate([np.full(self.firm, firm, dtype=np.int64), *finite])
        cut = MinimumCut(self.tails, self.heads, capacities, self.source, self.sink)
        if not cut.is_exact:
            # The capacities overflow: the line only says that no time is negative.
            return Line(1, 0, 0), 0, 0
        least = cut.capacity
        if least >= firm:
            return None
        work_ns = int(self.work[cut.is_before[: self.units]].sum())
        if slope < 0:
            least += slope * self.total_work
        crossing = (least - slope * work_ns) // self.scale
        value = least + self.scale * self.given
        return Line(self.scale, slope, value), work_ns, crossing + self.given

    def lines(self) -> tuple[Line, ...]:
        """Return a few lines along the lower hull; none if the case is impossible."""
        steep = min(self.steepest, self.scale * (int(self.costs.sum()) + 1))
        first, least, last = self.line(steep), self.line(0), self.line(-steep)
        if first is None or least is None or last is None:
            return ()
        lines = [first[0], least[0], last[0]]
        spans = [(first[1:], least[1:]), (least[1:], last[1:])]
        while spans and len(lines) < _LINES_PER_CASE:
            # Breadth first: the middle of the hull before its ends.
            (low_x, low_c), (high_x, high_c) = spans.pop(0)
            if high_x <= low_x:
                continue
            slope = -self.scale * (high_c - low_c) // (high_x - low_x)
            found = self.line(slope)
            assert found is not None
            line, x, c = found
            lines.append(line)
            chord = line.scale * low_c + line.slope * low_x
            if low_x < x < high_x and line.value < chord - line.scale:
                spans += [((low_x, low_c), (x, c)), ((x, c), (high_x, high_c))]
        return tuple(lines)
