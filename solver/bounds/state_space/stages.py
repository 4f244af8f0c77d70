"""Stages of a skeleton: what a device runs between two ideals, and what it costs at least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.bounds.spine import restricted
from solver.bounds.state_space.loose import Loose
from solver.bounds.state_space.skeleton import Feeders, Skeleton
from solver.model.arrays import Bools, Floats, Indices, Ints
from solver.presolve.instance import Instance
from solver.stages.blocks import DROPPED, Blocks
from solver.stages.held_bytes import HeldBytes, MemoryOfStages
from solver.stages.ideals import Ideals
from solver.stages.pair_sums import PairSum

_COLUMNS = 64
"""Ends whose stages are costed together."""
_MOST_PEAKS = 1_500_000
"""Stages whose peaks are looked at, which takes some microseconds for each; of others, the end."""
MOST_CELLS = 1_500_000_000
"""Most pairs of ideals to look at."""
MOST_STAGES = 4_000_000
"""Most stages to keep."""


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """All stages within a limit on the load that some plan may begin with or reach, as columns.

    Attributes
    ----------
    start, end : Indices, shape (n,)
        Ideals.
    load_ns : list of Floats, shape (n,)
        By class of devices: the least load without sends of wide values.
    held_bytes : Floats, shape (n,)
        What kept units of the stage make it hold at least.
    remote_ns : list of Floats, shape (n,)
        By group of feeders: how much more the load is if none of their chains runs here.
    away_ns : list of Floats, shape (n,)
        By group of feeders: the least time that others then spend on sends to the device.
    """

    start: Indices
    end: Indices
    load_ns: list[Floats]
    held_bytes: Floats
    remote_ns: list[Floats]
    away_ns: list[Floats]

    def at_most(self, load_ns: int) -> Stages:
        """Return the stages with a load of at most `load_ns` on some class."""
        kept = np.flatnonzero(np.minimum.reduce(self.load_ns) <= load_ns)
        return Stages(
            self.start[kept],
            self.end[kept],
            [column[kept] for column in self.load_ns],
            self.held_bytes[kept],
            [column[kept] for column in self.remote_ns],
            [column[kept] for column in self.away_ns],
        )


class SkeletonCosts:
    """Least costs of all stages of a skeleton.

    Parameters
    ----------
    classes : sequence of str
        The classes of devices.
    rooms : sequence of float
        How much memory devices have.

    Attributes
    ----------
    held : HeldBytes
        What kept units hold.
    slowness : list of float
        By class: the least ratio of a kept unit's time to its time on its fastest class.

    Notes
    -----
    Proof. Let S be what a device d runs, and regard the kept units of S alone for all terms but
    those of feeders. Their work, one send of each local net that leaves S and one receive of each
    that a kept unit of S reads from outside are part of the load of d.

    Take a group of feeders, and its chains whose readers are in S. If a chain runs wholly on d, so
    does a unit that reads each of the inputs; d receives those made elsewhere, once for all chains,
    and spends the work of the chain. Otherwise take the last unit of the chain that is not on d:
    what it makes is received, for the next unit or the reader is on d. These receives differ
    from chain to chain, as every value in one has a single reader, and from all others above. So d
    spends at least the less of "the inputs, and for each chain the less of its work and its
    receive" and "the receives of all chains". An input that some kept unit of S reads is received
    either way. If an input is read by several groups, one of them is charged.

    All that a reader is charged for is such a chain, too, if a single unit of it, the head, reads
    an input. If d runs the head, it receives the input or makes it, and spends the minimum cut of
    :func:`solver.bounds.state_space.supply.supply_ns`. If not, it receives the values of a cut
    between the head and the reader, and the head's device sends those of one: each is at least the
    minimum cut of receives alone. ∎

    Sends of a wide value, to as many devices as run a reader of it, are added by whoever knows
    which stages follow (:class:`solver.bounds.state_space.bound.SkeletonBound`).
    """

    def __init__(
        self,
        units: Instance,
        skeleton: Skeleton,
        classes: Sequence[str],
        rooms: Sequence[float],
    ) -> None:
        self.skeleton = skeleton
        kept = skeleton.units
        places = [DROPPED] * len(units)
        for place, unit in enumerate(kept):
            places[unit] = place
        blocks = Blocks(len(kept), tuple(places), skeleton.edges, (), frozenset())
        own = restricted(units, kept)
        self.ideals = Ideals.of(skeleton.ideals, own.fastest_ns.astype(np.float64))
        member = self.ideals.member
        self._work_ns = [own.work_ns[name].astype(np.float64) @ member for name in classes]
        self._move = PairSum(member)
        for crossing in skeleton.local_nets:
            self._move.add_sent(crossing)
            self._move.add_received(crossing)
        self._move.add_units(skeleton.supply_ns)
        self.slowness = [own.slowness[name] for name in classes]
        self.held = HeldBytes(units, blocks, self.ideals)
        self.loose = Loose.of(skeleton, member, units.weights)
        self._rooms_bytes, self._peaks_left = np.array(rooms), _MOST_PEAKS
        self.made: list[Bools] = [member[net.producer] for net in skeleton.wide]
        self._read: list[Ints] = [
            member[list(net.readers)].sum(axis=0, dtype=np.int64) for net in skeleton.wide
        ]
        self._least: list[Ints] = []
        self._remote: list[Ints] = []
        for group in skeleton.feeders:
            least, remote = _by_reader(group, len(kept))
            self._least.append(least @ member)
            self._remote.append(remote @ member)

    def reads(self, net: int, stages: Stages) -> Bools:
        """Return whether a kept unit of each stage reads a wide value."""
        result: Bools = self._read[net][stages.end] > self._read[net][stages.start]
        return result

    def into(self, ends: Indices, starts: Indices, most_ns: int) -> Stages:
        """Return the stages from `starts` to `ends` within a load that fit some device.

        Parameters
        ----------
        ends, starts : Indices
            Ascending, as all are by work.
        most_ns : int
            The limit on the load.
        """
        work_ns = self.ideals.work_ns
        low = int(np.searchsorted(work_ns[starts], work_ns[ends[0]] - most_ns))
        high = int(np.searchsorted(work_ns[starts], work_ns[ends[-1]], side="right"))
        starts = starts[low:high]
        fits = self.ideals.nested(starts, ends)
        fits &= work_ns[ends][None, :] - work_ns[starts][:, None] <= most_ns
        some = fits.any(axis=1)
        starts, fits = starts[some], fits[some]
        if not len(starts):
            return _none(len(self._work_ns), len(self._least))
        load = self._move.table(starts, ends)
        remote: list[Floats] = []
        for number, group in enumerate(self.skeleton.feeders):
            local, away = self._feeding(number, group, starts, ends)
            least_ns = np.minimum(local, away)
            load = load + least_ns
            remote.append(away - least_ns)
        loads = [load + (work[ends][None, :] - work[starts][:, None]) for work in self._work_ns]
        fits &= np.minimum.reduce(loads) <= most_ns
        rows, columns = np.nonzero(fits)
        held = self._held_bytes(self.held.of(starts, ends, fits))
        some = held <= self._rooms_bytes.max()
        rows, columns = rows[some], columns[some]
        return Stages(
            starts[rows],
            ends[columns],
            [table[rows, columns] for table in loads],
            held[some],
            [table[rows, columns] for table in remote],
            [
                (amounts[ends[columns]] - amounts[starts[rows]]).astype(np.float64)
                for amounts in self._remote
            ],
        )

    def _held_bytes(self, memory: MemoryOfStages) -> Floats:
        """Return what kept units make stages hold at least, exactly where that may matter."""
        left = self._rooms_bytes - memory.bytes[:, None]
        # Little that passes leaves nearly as much room for the weights of other units.
        beside = np.where(2 * memory.spread >= self.loose.total, self.loose.total, 0)
        uncertain = ((left >= 0) & (left < (memory.spread + beside)[:, None])).any(axis=1)
        self._peaks_left -= int(np.count_nonzero(uncertain))
        if self._peaks_left >= 0:
            memory.look(uncertain)
        return memory.bytes

    def _feeding(
        self, number: int, group: Feeders, starts: Indices, ends: Indices
    ) -> tuple[Floats, Floats]:
        """Return what feeders cost at least if some chain runs on the device, and if none does."""

        def between(amounts: Ints) -> Floats:
            result: Floats = (amounts[ends][None, :] - amounts[starts][:, None]).astype(np.float64)
            return result

        local, away = between(self._least[number]), between(self._remote[number])
        for index in group.inputs:
            net = self.skeleton.wide[index]
            if net.owner != number:
                continue
            arrives = (net.time_ns * self.made[index][starts]).astype(np.float64)[:, None]
            local = local + arrives
            away = away + arrives * (between(self._read[index]) > 0)
        return local, away


def blocks(ends: Indices) -> list[Indices]:
    """Return `ends` in pieces that are costed together."""
    return [ends[low : low + _COLUMNS] for low in range(0, len(ends), _COLUMNS)]


def joined(parts: Sequence[Stages]) -> Stages:
    """Return the stages of all parts, of which there is at least one."""
    return Stages(
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.end for part in parts]),
        [np.concatenate(columns) for columns in zip(*(p.load_ns for p in parts), strict=True)],
        np.concatenate([part.held_bytes for part in parts]),
        [np.concatenate(columns) for columns in zip(*(p.remote_ns for p in parts), strict=True)],
        [np.concatenate(columns) for columns in zip(*(p.away_ns for p in parts), strict=True)],
    )


def _none(classes: int, groups: int) -> Stages:
    none = np.zeros(0)
    index = np.zeros(0, dtype=np.intp)
    return Stages(index, index, [none] * classes, none, [none] * groups, [none] * groups)


def _by_reader(group: Feeders, count: int) -> tuple[Ints, Ints]:
    """Return, by place of the reader, the least cost of chains and that of receiving from them."""
    least = np.zeros(count, dtype=np.int64)
    remote = np.zeros(count, dtype=np.int64)
    for reader, work, received in zip(group.readers, group.work_ns, group.remote_ns, strict=True):
        least[reader] += min(work, received)
        remote[reader] += received
    return least, remote
