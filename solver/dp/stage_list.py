"""All stages between ideals below a ceiling on the load, and the device sets able to run the rest.

The stages, which are the same for all sets of devices, are listed once, from the last ideals to
the first. Each has a class: the kinds of devices it fits on and, for each, the most stages that
may follow (under 1F1B the memory of a stage depends on that). The sets of devices that can run all
outside an ideal I are a *family*, the bits of a few words (:mod:`solver.dp.set_bits`): over every
stage from I to J, the family of J, with one device more of a kind that fits. So a pass over the
list takes one ``or`` of words for each stage, for any number of sets. Ideals of equally many
blocks do not contain one another, and are done together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from solver.dp.set_bits import SetBits, Words
from solver.model.arrays import Bools, Floats, Indices, Ints
from solver.stages.costs import StageCosts

_ROWS = 64
"""Starts whose stages are costed together."""


class TooManyStages(Exception):  # noqa: N818
    """Raised if a list would not fit into memory."""


@dataclass(frozen=True, slots=True, eq=False)
class StageList:
    """Stages in groups of the same start and class, the last starts first.

    `end` and `load_ns`, on the kinds of its class, are by stage, `start` and `class_` by group.
    `first` has the first stage of every group, and the number of stages; `level` the first group of
    every level of starts, and the number of groups. `sends` are those that the loads count for some
    values (:mod:`solver.dp.readers`), by the end of the producing stage; one for all others.
    """

    end: Indices
    load_ns: Floats
    first: Ints
    start: Ints
    class_: Ints
    level: Ints
    sends: Mapping[int, Floats] = field(default_factory=dict)

    @classmethod
    def join(cls, parts: Sequence[StageList]) -> StageList:
        """Concatenate lists."""
        stages = np.cumsum([0, *(len(part.end) for part in parts)])
        groups = np.cumsum([0, *(len(part.start) for part in parts)])
        return cls(
            end=np.concatenate([part.end for part in parts]),
            load_ns=np.concatenate([part.load_ns for part in parts]),
            first=_shifted([part.first for part in parts], stages),
            start=np.concatenate([part.start for part in parts]),
            class_=np.concatenate([part.class_ for part in parts]),
            level=_shifted([part.level for part in parts], groups),
        )

    def below(self, ceiling: float, alive: Bools | None = None) -> StageList:
        """Return the stages with a load of at most `ceiling`, between ideals that are `alive`."""
        kept = self.load_ns <= ceiling
        if alive is not None:
            kept &= alive[self.end]
            kept &= np.repeat(alive[self.start], np.diff(self.first))
        if kept.all():
            return self
        counts = np.add.reduceat(kept, self.first[:-1], dtype=np.int64)
        some = np.flatnonzero(counts)
        groups = np.append(0, np.cumsum(counts > 0))
        return replace(
            self,
            end=self.end[kept],
            load_ns=self.load_ns[kept],
            first=np.append(0, np.cumsum(counts[some])),
            start=self.start[some],
            class_=self.class_[some],
            level=np.unique(groups[self.level]),
        )

    def levels(self) -> Iterator[tuple[slice, Ints]]:
        """Yield for every level its groups, and the first stages of them and of the next one."""
        for low, high in zip(self.level[:-1].tolist(), self.level[1:].tolist(), strict=True):
            yield slice(low, high), self.first[low : high + 1]


def _shifted(parts: Sequence[Ints], offsets: Ints) -> Ints:
    moved = [part[:-1] + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
    return np.concatenate([*moved, offsets[-1:]])


class Families:
    """For every ideal, the sets of devices that can run all outside it.

    `may` has as bits, in a column for each ideal, candidate sets of devices for the rest of it, and
    `words` those that can run it.
    """

    def __init__(self, bits: SetBits, ideals: int, may: Words) -> None:
        self._bits, self._may = bits, may
        self.words = np.zeros((bits.words, ideals), dtype=np.uint64)
        # Nothing is outside the last ideal: the empty set of devices runs it.
        self.words[0, -1] = 1
        most = int(bits.sizes.max())
        self._at_most = np.hstack([bits.of_size_at_most(size) for size in range(-1, most + 1)])

    def extend(self, stages: StageList, followers: Ints) -> None:
        """Compute the families of all starts of a list, with ends that are known or among them.

        By class and kind, `followers` are the most stages after one of the class on a device of the
        kind; -1 if it never fits.
        """
        for groups, first in stages.levels():
            ends = stages.end[first[0] : first[-1]]
            behind = np.empty((self._bits.words, len(first) - 1), dtype=np.uint64)
            for word, known in enumerate(self.words):
                np.bitwise_or.reduceat(known[ends], first[:-1] - first[0], out=behind[word])
            most = followers[stages.class_[groups]]
            found = np.zeros_like(behind)
            for kind in range(most.shape[1]):
                found |= self._bits.grown(behind & self._at_most[:, most[:, kind] + 1], kind)
            order = np.argsort(stages.start[groups], kind="stable")
            starts, at = np.unique(stages.start[groups][order], return_index=True)
            joined = np.bitwise_or.reduceat(found[:, order], at, axis=1)
            self.words[:, starts] = joined & self._may[:, starts]

    def alive(self) -> Bools:
        """Return the ideals whose rest some set of devices can run."""
        return np.asarray(self.words.any(axis=0))

    def may(self, ideals: Indices) -> Bools:
        """Return the ideals whose rest has any candidate set of devices."""
        return np.asarray(self._may[:, ideals].any(axis=0))

    def has(self, ideals: Indices, number: int) -> Bools:
        """Return the families that contain the set of devices with this number."""
        word, bit = divmod(number, 64)
        shifted: Words = self.words[word, ideals] >> np.uint64(bit)
        return (shifted & np.uint64(1)).astype(np.bool_)


class StageLister:
    """Lists stages and their classes.

    `capacity` is in bytes, by kind. `in_flight` are microbatches in a stage by the number of stages
    after it, never descending. `spend` is called with the number of pairs of ideals examined, and
    raises to stop.
    """

    def __init__(
        self,
        costs: StageCosts,
        capacity: Sequence[float],
        in_flight: Sequence[int],
        spend: Callable[[int], None],
    ) -> None:
        self._costs, self._capacity, self._spend = costs, np.array(capacity), spend
        # Most stages after one with these microbatches in flight.
        self._most_behind = {count: place for place, count in enumerate(in_flight)}
        sizes = costs.ideals.member.sum(axis=0)
        # Ideals by number of blocks, the largest first, without the last one.
        order = np.argsort(-sizes, kind="stable")[1:]
        self._levels = np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1)
        self._classes: dict[tuple[int, ...], int] = {}

    @property
    def followers(self) -> Ints:
        """See :meth:`Families.extend`."""
        return np.array(list(self._classes), dtype=np.int64).reshape(-1, len(self._capacity))

    def fill(self, families: Families, ceiling: float, most: int) -> StageList | None:
        """List the stages of at most `ceiling`, if any, and fill new families with them.

        Only stages are listed whose rest some set of devices can run. Raises :class:`TooManyStages`
        if there are more than `most`.
        """
        listed: list[StageList] = []
        alive = np.zeros(len(self._costs.ideals), dtype=np.bool_)
        alive[-1] = True
        count = 0
        for level in self._levels:
            starts, ends = level[families.may(level)], np.flatnonzero(alive)
            parts: list[_Block] = []
            for first in range(0, len(starts), _ROWS):
                for block in self._blocks(starts[first : first + _ROWS], ends, ceiling):
                    parts.append(block)
                    count += len(block.end)
                    if count > most:
                        raise TooManyStages
            if parts:
                stages = _level(parts)
                families.extend(stages, self.followers)
                alive[stages.start] = families.words[:, stages.start].any(axis=0)
                listed.append(stages)
        return StageList.join(listed) if listed else None

    def _blocks(self, starts: Indices, ends: Indices, ceiling: float) -> Iterator[_Block]:
        costs = self._costs
        for kinds in costs.identical_kinds:
            kind = kinds[0]
            rows, columns, fits = costs.possible(kind, starts, ends, ceiling, self._spend)
            if not fits.size:
                continue
            load_ns = costs.load_ns(kind, rows, columns)
            fits &= load_ns <= ceiling
            row, column = np.nonzero(fits)
            behind = self._behind(kinds, rows, columns, fits)
            yield from self._classified(
                kinds, behind, rows[row], columns[column], load_ns[row, column]
            )

    def _behind(self, kinds: Sequence[int], starts: Indices, ends: Indices, chosen: Bools) -> Ints:
        """Return the most stages after each chosen one (row) by kind (column); -1 if none fits."""
        count = int(np.count_nonzero(chosen))
        capacity = self._capacity[list(kinds)]
        if np.isinf(capacity).all() or not count:
            return np.full((count, len(kinds)), max(self._most_behind.values()), dtype=np.int64)
        memory = self._costs.held.of(starts, ends, chosen)
        result = np.full((count, len(kinds)), -1, dtype=np.int64)
        for in_flight, place in self._most_behind.items():
            result[memory.extra_ns(capacity, in_flight) == 0] = place
        return result

    def _classified(
        self, kinds: Sequence[int], behind: Ints, starts: Indices, ends: Indices, load_ns: Floats
    ) -> Iterator[_Block]:
        """Yield stages by class, without those that fit nowhere; starts ascend."""
        radix = max(self._most_behind.values()) + 2
        code = np.zeros(len(behind), dtype=np.int64)
        for column in behind.T:
            code = code * radix + column + 1
        # Usually all stages fit on all kinds.
        values = code[:1] if len(code) and (code == code[0]).all() else np.unique(code)
        for value in values[values > 0].tolist():
            chosen = slice(None) if len(values) == 1 else np.flatnonzero(code == value)
            followers = [-1] * len(self._capacity)
            for kind, count in zip(kinds, behind[chosen][0].tolist(), strict=True):
                followers[kind] = count
            class_ = self._classes.setdefault(tuple(followers), len(self._classes))
            yield _Block(class_, starts[chosen], ends[chosen], load_ns[chosen])


class _Block(NamedTuple):
    class_: int
    start: Indices
    end: Indices
    load_ns: Floats


def _level(blocks: Sequence[_Block]) -> StageList:
    start = np.concatenate([block.start for block in blocks])
    lengths = [len(block.start) for block in blocks]
    class_ = np.repeat([block.class_ for block in blocks], lengths)
    # Two blocks may have the same start, but a group ends with its block.
    differs = np.ones(len(start), dtype=np.bool_)
    differs[1:] = np.diff(start) != 0
    differs[np.cumsum([0, *lengths[:-1]])] = True
    first = np.flatnonzero(differs)
    return StageList(
        end=np.concatenate([block.end for block in blocks]),
        load_ns=np.concatenate([block.load_ns for block in blocks]),
        first=np.append(first, len(start)),
        start=start[first],
        class_=class_[first],
        level=np.array([0, len(first)]),
    )
