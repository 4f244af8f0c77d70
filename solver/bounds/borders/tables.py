"""The borders at which the first stages of a plan can end, with their costs.

A *border* is a set of units that is closed under ancestors: all units up to an articulation unit
and an ideal of the region after it (:mod:`solver.bounds.regional.regions`). Chain-like graphs have
few ideals in each region, and many identical regions, so all of them can be listed. Dominated
borders are dropped: another one holds no less, costs no more, and reaches no less far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.bounds.borders.horizons import Horizons
from solver.bounds.borders.live_bytes import LiveBytes
from solver.bounds.borders.side_values import side_values
from solver.bounds.regional.held_weights import stage_weights
from solver.bounds.regional.regions import PlacedNets, Regions
from solver.bounds.regional.spine import restricted
from solver.model.arrays import Bools, Ints
from solver.presolve.instance import Instance
from solver.stages.ideals import list_ideals, membership

_MOST_IDEALS = 100_000
"""Ideals of one region."""
_MOST_LISTED = 200_000
"""Ideals of all distinct regions."""
_MOST_BORDERS = 40_000
_ROWS_AT_ONCE = 128


@dataclass(frozen=True, slots=True, eq=False)
class Borders:
    """Borders by ascending region and work, the empty set first and that of everything last.

    A stage from border i to border j takes at least end_ns[level][j] - start_ns[level][i] and, if
    it fits on any device, holds at least held_bytes[j] - start_bytes[level][i], where region[j] >
    last_invalid[level][region[i] + 1]. The regions of the first and the last border are -1 and the
    number of regions.

    By level, `end_ns` is the work before the border plus its sends, `start_ns` the work less its
    receives, and `start_bytes` the weights before the border, less the other bytes of a stage that
    starts there. `work` and `held_bytes` are the work and the weights before it. `last_invalid` has
    by level and by the region before, plus 1, the last region of ends too close for the level.
    """

    work: Ints
    held_bytes: Ints
    region: Ints
    end_ns: tuple[Ints, ...]
    start_ns: tuple[Ints, ...]
    start_bytes: tuple[Ints, ...]
    last_invalid: tuple[Ints, ...]
    places: Regions

    def __len__(self) -> int:
        return len(self.work)


@dataclass(frozen=True, slots=True)
class _Feature:
    """A value as one region sees it; units are indices in the region, tuples of bool by level."""

    producer: int  # -1 before the region.
    readers: tuple[int, ...]
    read_ahead: tuple[bool, ...]  # Another reader is behind the region, within the horizon.
    leaves: bool  # Another reader is behind the region.
    made_behind: tuple[bool, ...]  # The producer is within the horizon.
    time_ns: int  # Least time of one transfer.
    held_bytes: int
    is_sent: bool  # False if the sender is unknown.


class BorderList:
    """Lists the borders of a problem.

    `kept` are the units of its spine (:mod:`solver.bounds.regional.spine`), of which the sets are,
    `work` is that of each. Plans have at most `slots` stages; `slowness` is the largest of any
    device.

    Proof of the costs. Let stage k lead from S_{k-1}, which ends in region i, to S_k, which ends in
    region j > i. For a level with horizons h(i) > i and g(j) <= j let j >= h(i) and i < g(j). Then
    S_k contains articulation unit h(i), so the stage receives every value of S_{k-1} that is read
    outside by a unit up to h(i); and S_{k-1} does not contain unit g(j), so the stage sends every
    value that is made from g(j) on in S_k and read outside. No value is in both. At the empty set
    nothing arrives, and at the end nothing leaves, so no stage there is too short; except at the
    last level, which reaches as far as the largest live set ahead, at the start, too. Relayed
    values cross every border between their producer and their last reader, in stages of any length.

    The stage holds its weights (:mod:`solver.bounds.regional.held_weights`), the values it
    receives, and at any step t the storages of its own units that are live at t
    (docs/definition.md, section 3): at least the largest sum over those of units behind region i up
    to articulation unit h(i).

    On a device that is s times slower the load is s times the work plus the transfers. Hence the
    work plus 1 / s of the transfers is at most 1 / s of the limit. Here transfers count for 1 /
    `slowness` everywhere, which is no more.

    Borders of one region are dropped if another one of the region has no larger work, weights and
    sends, and no smaller `start_ns` and `start_bytes`: replacing it changes no level of any stage,
    and keeps every stage feasible.
    """

    def __init__(
        self, units: Instance, kept: Sequence[int], work: Ints, slots: int, slowness: float
    ) -> None:
        self._spine = spine = restricted(units, kept)
        self._slowness = slowness
        hops = units.transfers.hops
        self._counts_weights_alone = units.problem.memory_model == "weights"
        self._work = work
        self.places = Regions(spine, work)
        self._weights = stage_weights(spine)
        counts_live = not (hops or self._counts_weights_alone)
        lives = LiveBytes(units, kept, self.places) if counts_live else None
        average_ns = max(int(work.sum()) // max(slots, 1), 1)
        self._levels = Horizons(self.places, average_ns, lives, relayed=hops)
        self._side = () if hops else side_values(units, kept)
        self._set_nets()
        self._live = [
            np.zeros(self.places.count, dtype=np.int64) if lives is None else lives.behind(ahead)
            for ahead in self._levels.ahead
        ]

    def _set_nets(self) -> None:
        """Place the nets and the values from outside the spine."""
        transfers = self._spine.transfers
        where = self.places.coordinate.tolist()
        end = 2 * self.places.count
        rows = [
            (net.producer, net.consumers, time_ns, self._held(net.held_bytes), net.is_output, True)
            for net, time_ns in zip(transfers.nets, transfers.least_ns, strict=True)
        ]
        rows += [
            (value.first, value.readers, value.time_ns, self._held(value.held_bytes), False, False)
            for value in self._side
        ]
        self._rows = rows
        self._readers = [
            [where[unit] for unit in consumers] + [end] * is_returned
            for _, consumers, _, _, is_returned, _ in rows
        ]
        self._producers = [where[row[0]] for row in rows]
        placed = PlacedNets.of(self._producers, self._readers)
        time_ns = np.array([row[2] for row in rows], dtype=np.int64)
        sent_ns = np.array([row[2] if row[5] else 0 for row in rows], dtype=np.int64)
        held = np.array([row[3] for row in rows], dtype=np.int64)
        count = self.places.count
        self._through_in = [placed.through(time_ns, count, ahead=a) for a in self._levels.ahead]
        self._through_out = [placed.through(sent_ns, count, behind=b) for b in self._levels.behind]
        self._through_held = [placed.through(held, count, ahead=a) for a in self._levels.ahead]

    def _held(self, held_bytes: int) -> int:
        return 0 if self._counts_weights_alone else held_bytes

    def _features(self) -> dict[int, list[_Feature]]:
        """Return, by region, the values that cross some but not all of its ideals."""
        found: dict[int, list[_Feature]] = {region: [] for region in self.places.members}
        where, place = self.places.coordinate.tolist(), self.places.place.tolist()
        levels = range(len(self._levels.ahead))
        for row, producer, readers in zip(self._rows, self._producers, self._readers, strict=True):
            unit, consumers, time_ns, held_bytes, _, is_sent = row
            inside: dict[int, list[int]] = {}
            for consumer in consumers:
                if where[consumer] % 2:
                    inside.setdefault(where[consumer] // 2, []).append(place[consumer])
            if producer % 2:
                inside.setdefault(producer // 2, [])
            for region, own in inside.items():
                is_local = producer == 2 * region + 1
                later = bisect_right(readers, 2 * region + 1)
                leaves = later < len(readers)
                read_ahead = tuple(
                    leaves and readers[later] <= 2 * int(self._levels.ahead[level][region])
                    for level in levels
                )
                made_behind = tuple(
                    producer >= 2 * int(self._levels.behind[level][region]) for level in levels
                )
                # With a later reader, a value from before the region crosses all its ideals.
                if is_local or not all(read_ahead):
                    made = place[unit] if is_local else -1
                    crossing = read_ahead, leaves, made_behind, time_ns, held_bytes, is_sent
                    found[region].append(_Feature(made, tuple(own), *crossing))
        return found

    def borders(self) -> Borders | None:
        """Return the undominated borders; None if there are too many ideals."""
        places = self.places
        features = self._features()
        ideals_of: dict[tuple[object, ...], Bools | None] = {}
        shapes: dict[tuple[object, ...], Ints] = {}
        tables: list[Ints] = []
        regions: list[Ints] = []
        levels = len(self._levels.ahead)
        listed = rows = 0
        weights_before, _ = places.sums(self._weights)
        for region in range(places.count):
            own = places.members.get(region, [])
            table = np.zeros((1, 2 + 3 * levels), dtype=np.int64)
            if own:
                arcs = places.arcs(region)
                work, held = self._work[own], self._weights[own]
                key = (work.tobytes(), held.tobytes(), arcs, tuple(features[region]))
                if key not in shapes:
                    graph = (len(own), arcs)
                    if graph not in ideals_of:
                        ideals_of[graph] = _ideals(*graph)
                    member = ideals_of[graph]
                    if member is None:
                        return None
                    listed += member.shape[1]
                    if listed > _MOST_LISTED:
                        return None
                    shapes[key] = self._shape(member, work, held, features[region])
                table = shapes[key]
            rows += len(table)
            if rows > _MOST_BORDERS:
                return None
            through = [
                sums[level][region]
                for sums in (self._through_in, self._through_out, self._through_held)
                for level in range(levels)
            ]
            table = table + np.array(
                [places.start[region], weights_before[region], *through], dtype=np.int64
            )
            table[:, 2 + 2 * levels :] += [self._live[level][region] for level in range(levels)]
            tables.append(table)
            regions.append(np.full(len(table), region))
        return self._joined(np.concatenate(tables), np.concatenate(regions))

    def _shape(self, member: Bools, work: Ints, held: Ints, features: Sequence[_Feature]) -> Ints:
        """Return work, weights and crossings of the undominated ideals of one region."""
        levels = len(self._levels.ahead)
        count = member.shape[1]
        table = np.zeros((count, 2 + 3 * levels), dtype=np.int64)
        for unit, inside in enumerate(member):
            table[inside, 0] += work[unit]
            table[inside, 1] += held[unit]
        everywhere = np.ones(count, dtype=np.bool_)
        for value in features:
            is_local = value.producer >= 0
            made = member[value.producer] if is_local else everywhere
            waits = everywhere & False
            if value.readers:
                waits = made & ~member[list(value.readers)].all(axis=0)
            for level in range(levels):
                arrives = made if is_local and value.read_ahead[level] else waits
                if is_local or not value.read_ahead[level]:
                    table[arrives, 2 + level] += value.time_ns
                    table[arrives, 2 + 2 * levels + level] += value.held_bytes
                leaves = made if is_local and value.leaves else waits
                if value.is_sent and (is_local or (not value.leaves and value.made_behind[level])):
                    table[leaves, 2 + levels + level] += value.time_ns
        found: Ints = table[_undominated(self._costs(table))]
        return found

    def _costs(self, table: Ints) -> Ints:
        """Return columns of which less is never worse."""
        levels = len(self._levels.ahead)
        arriving, leaving, held = (
            table[:, 2 + part * levels : 2 + (part + 1) * levels] for part in range(3)
        )
        work, weights = table[:, :1], table[:, 1:2]
        ends = [weights, work + self._at_most(leaving)]
        starts = [self._at_most(arriving) - work, held - weights]
        return np.concatenate([*ends, *starts], axis=1)

    def _at_most(self, times: Ints) -> Ints:
        """Return the share of transfers that counts on the slowest device, rounded down."""
        if self._slowness <= 1:
            return times
        return np.floor(times / self._slowness * (1 - 1e-12)).astype(np.int64)

    def _joined(self, table: Ints, region: Ints) -> Borders:
        """Put both ends and all borders in order."""
        levels = len(self._levels.ahead)
        count = self.places.count
        first = np.zeros((1, table.shape[1]), dtype=np.int64)
        last = first.copy()
        first[0, 2 + 2 * levels :] = self._levels.first_live
        last[0, :2] = self._work.sum(), self._weights.sum()
        # Work ascends from region to region.
        order = np.lexsort((table[:, 0], region))
        table = np.concatenate([first, table[order], last])
        columns = self._costs(table)
        return Borders(
            work=table[:, 0].copy(),
            held_bytes=table[:, 1].copy(),
            region=np.concatenate([[-1], region[order], [count]]),
            end_ns=tuple(columns[:, 1 + level].copy() for level in range(levels)),
            start_ns=tuple(-columns[:, 1 + levels + level] for level in range(levels)),
            start_bytes=tuple(-columns[:, 1 + 2 * levels + level] for level in range(levels)),
            last_invalid=tuple(self._levels.last_invalid),
            places=self.places,
        )


def _ideals(count: int, arcs: tuple[tuple[int, int], ...]) -> Bools | None:
    masks = list_ideals(count, arcs, _MOST_IDEALS)
    return None if masks is None else membership(masks, count)


def _undominated(costs: Ints) -> list[int]:
    """Return the rows that no other matches or undercuts in every column, ascending.

    Of equal rows one is kept. In lexicographic order no row is dominated by a later one.
    """
    order = np.lexsort(costs.T[::-1])
    kept = np.zeros(0, dtype=np.int64)
    for start in range(0, len(order), _ROWS_AT_ONCE):
        some = order[start : start + _ROWS_AT_ONCE]
        pool = np.concatenate([kept, some])
        # Compare each row with earlier ones only.
        smaller = np.arange(len(pool))[:, None] < (len(kept) + np.arange(len(some)))[None, :]
        for column in costs.T:
            smaller &= column[pool][:, None] <= column[some][None, :]
        kept = np.concatenate([kept, some[~smaller.any(axis=0)]])
    result: list[int] = np.sort(kept).tolist()
    return result
