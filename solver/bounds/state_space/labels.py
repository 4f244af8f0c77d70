"""Ways through the program over ideals of a skeleton, with all that each owes at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solver.bounds.state_space.program import Program
from solver.bounds.state_space.stages import SkeletonCosts
from solver.model.arrays import Bools, Floats, Indices
from solver.model.clock import UNLIMITED, Clock

MOST_LABELS = 3_000_000
"""Labels to make before giving up: a second or two."""
_ROWS = 100_000
"""Labels to extend together."""
_MOST_GROUPS = 5
"""Groups of feeders that stages choose for one by one; others count for nothing."""


class TooManyLabels(Exception):  # noqa: N818
    """Labels are more than are worth making."""


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """Labels of one set of devices, by ideal.

    Attributes
    ----------
    first : Indices, shape (ideals + 1,)
        Where the labels of each ideal begin.
    amounts : Floats, shape (labels, 2 * wide values + 1)
        Of each wide value what is sent for readers, then of each what is due for results of
        chains, then bytes of loose weights that do not fit.
    made : Indices, shape (n,)
        The label that stands for each that was made.
    parents : Indices, shape (n, 2)
        Of each that was made the set of devices and the label that it extends.
    """

    first: Indices
    amounts: Floats
    made: Indices
    parents: Indices

    @property
    def ideals(self) -> Indices:
        """The ideal of each label."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


class Ways:
    """All ways through a program on which each device keeps to the limit.

    Parameters
    ----------
    alive : sequence of Bools, shape (ideals,)
        By set of devices the ideals to look at.
    most : int
        Labels to make before giving up.
    clock : Clock
        When to give up.

    Raises
    ------
    TooManyLabels
        More would be made, or time is over.

    Notes
    -----
    The program knows the least of each amount over all ways to run the rest; here labels have the
    amounts of one way, and of those of one set and ideal only such stay as have none beside them
    that is nowhere larger (label setting: M. Desrochers, F. Soumis, "A generalized permanent
    labelling algorithm for the shortest path problem with time windows", INFOR 26, 1988). Proof
    that this refutes no plan: as in :class:`solver.bounds.state_space.bound.SkeletonBound`, for a
    label that makes the plan's own choices. A stage either reads all inputs of a group of feeders,
    or runs none of its chains wholly. Then others spend `away_ns` on sends to it: the maker of each
    input its share, but for what devices between that read the input send for it, in the time that
    they have left. A dominated label reaches nothing that the other does not. ∎
    """

    def __init__(
        self,
        costs: SkeletonCosts,
        program: Program,
        alive: Sequence[Bools],
        most: int = MOST_LABELS,
        clock: Clock = UNLIMITED,
    ) -> None:
        self._costs, self._program, self._alive, self._most = costs, program, alive, most
        self._wide = len(costs.made)
        self._count = 0
        groups = sorted(
            (g for g, group in enumerate(costs.skeleton.feeders) if group.readers),
            key=lambda g: -sum(costs.skeleton.feeders[g].remote_ns),
        )
        self._groups = groups[:_MOST_GROUPS]
        self._labels: list[_Labels] = []
        for state in range(len(program.sets)):
            if clock.is_over:
                raise TooManyLabels
            self._labels.append(self._of_set(state))

    @property
    def exist(self) -> bool:
        """Whether there is any."""
        return any(
            self._program.is_whole(state) and not labels.amounts[: labels.first[1], -1].all()
            for state, labels in enumerate(self._labels)
        )

    @cached_property
    def _on_ways(self) -> list[Bools]:
        """Of every set of devices the labels that are on some way through the whole program."""
        marked = [np.zeros(len(labels.amounts), dtype=np.bool_) for labels in self._labels]
        for state in reversed(range(len(self._labels))):
            labels = self._labels[state]
            if self._program.is_whole(state):
                end = int(labels.first[1])
                marked[state][:end] |= labels.amounts[:end, -1] == 0
            parents = labels.parents[marked[state][labels.made]]
            for other in np.unique(parents[:, 0]):
                marked[other][parents[parents[:, 0] == other, 1]] = True
        return marked

    def alive(self) -> list[Bools]:
        """Return, for every set of devices, the ideals that are on some way."""
        found: list[Bools] = []
        for labels, marked in zip(self._labels, self._on_ways, strict=True):
            ideals = np.zeros(len(self._costs.ideals), dtype=np.bool_)
            ideals[labels.ideals[marked]] = True
            found.append(ideals)
        return found

    def orders(self, most: int) -> list[tuple[int, ...]] | None:
        """Return the kinds of devices of all ways, from the first slot on.

        Parameters
        ----------
        most : int
            No list is returned if there are more.
        """
        offsets = np.cumsum([0, *(len(labels.amounts) for labels in self._labels)])
        slots = self._program.slots
        extended: list[Indices] = []
        for state, labels in enumerate(self._labels):
            rows = np.flatnonzero(self._on_ways[state][labels.made])
            kind_of = {rest: kind for kind, rest in self._program.sets.smaller[state]}
            rests, parents = labels.parents[rows].T
            kinds = np.array([kind_of[rest] for rest in rests.tolist()], dtype=np.intp)
            columns = [offsets[rests] + parents, kinds, offsets[state] + labels.made[rows]]
            extended.append(np.unique(np.column_stack(columns), axis=0))
        before, kinds, behind = np.concatenate(extended).T
        found: list[tuple[int, ...]] = []
        # Every label on a way leads to the first slot, so no beginning is in vain.
        waiting: list[tuple[tuple[int, ...], Bools]] = [((), _flags(offsets[-1], np.array([0])))]
        while waiting:
            order, labels_now = waiting.pop()
            if len(order) == slots:
                found.append(order)
            if len(found) > most:
                return None
            steps = labels_now[before]
            for kind in np.unique(kinds[steps]).tolist():
                after = behind[steps & (kinds == kind)]
                waiting.append(((kind, *order), _flags(offsets[-1], after)))
        return sorted(found)

    def _of_set(self, state: int) -> _Labels:
        parts = list(self._extended(state))
        width = 2 * self._wide + 1
        if state == 0:
            end = np.array([len(self._costs.ideals) - 1])
            amounts = np.zeros((1, width))
            amounts[0, -1] = self._program.level.loose.released[-1]
            parts = [(end, amounts, np.zeros((0, 2), dtype=np.intp))]
        if not parts:
            none = np.zeros(0, dtype=np.intp)
            first = np.zeros(len(self._costs.ideals) + 1, dtype=np.intp)
            return _Labels(first, np.zeros((0, width)), none, none.reshape(0, 2))
        ideals, amounts, parents = (np.concatenate(column) for column in zip(*parts, strict=True))
        kept, made = _undominated(ideals, amounts)
        first = np.searchsorted(ideals[kept], np.arange(len(self._costs.ideals) + 1))
        return _Labels(first, amounts[kept], made[: len(parents)], parents)

    def _extended(self, state: int) -> Iterator[tuple[Indices, Floats, Indices]]:
        """Yield ideals, amounts and parents of labels of a set from those of smaller sets."""
        program = self._program
        for kind, rest in program.sets.smaller[state]:
            labels = self._labels[rest]
            if not len(labels.amounts):
                continue
            idle = np.flatnonzero(self._alive[state][labels.ideals])
            if len(idle):
                amounts = labels.amounts[idle]
                amounts[:, -1] = np.maximum(amounts[:, -1] - program.idle_room(kind), 0.0)
                yield labels.ideals[idle], amounts, _parents(rest, idle)
            stages = program.level.stages
            steps = program.on(kind, *program.level.steps(program.rests[rest]))
            counts = np.diff(labels.first)
            some = self._alive[state][stages.start[steps.stages]]
            some &= counts[stages.end[steps.stages]] > 0
            steps = steps.take(some)
            counts = counts[stages.end[steps.stages]]
            self._charge(int(counts.sum()))
            # One row for each step and label at its end.
            every = np.repeat(np.arange(len(counts)), counts)
            begin = labels.first[stages.end[steps.stages]]
            own = np.arange(len(every)) - np.repeat(np.cumsum(counts) - counts, counts)
            load_ns = stages.load_ns[program.class_of(kind)][steps.stages]
            for low in range(0, len(every), _ROWS):
                row = every[low : low + _ROWS]
                chosen = begin[row] + own[low : low + _ROWS]
                yield from self._through(
                    steps.stages[row],
                    load_ns[row],
                    steps.room[row],
                    labels.amounts[chosen],
                    _parents(rest, chosen),
                )

    def _charge(self, count: int) -> None:
        self._count += count
        if self._count > self._most:
            raise TooManyLabels

    def _through(
        self, stages: Indices, load_ns: Floats, room: Floats, amounts: Floats, parents: Indices
    ) -> Iterator[tuple[Indices, Floats, Indices]]:
        """Yield what stages make of labels at their ends, for all choices that they have."""
        level, wide, costs = self._program.level, self._wide, self._costs
        makes = _columns(level.makes, stages)
        sent, due = amounts[:, :wide], amounts[:, wide:-1]
        due_ns: Floats = (due * makes).sum(axis=1)
        load_ns = load_ns + (sent * makes).sum(axis=1) + due_ns
        start, end = level.stages.start[stages], level.stages.end[stages]
        loose = level.loose
        left = amounts[:, -1] + loose.released[start] - loose.released[end] - room
        left = np.maximum(left, 0.0)
        some = np.flatnonzero((load_ns <= level.limit_ns) & (left <= loose.waiting[start]))
        if not len(some):
            return
        stages, start, left, parents = stages[some], start[some], left[some], parents[some]
        load_ns, slack_ns = load_ns[some], level.limit_ns - load_ns[some] + due_ns[some]
        # What is made here, or after, is settled.
        live = _columns(costs.made, start)
        sent, due = sent[some] * live, due[some] * live
        relief = [chains.relief_ns(slack_ns) for chains in level.chains]
        groups = [costs.skeleton.feeders[number] for number in self._groups]
        options = [self._options(g, stages, load_ns, due, slack_ns) for g in self._groups]
        for choice in itertools.product((True, False), repeat=len(self._groups)):
            able = np.ones(len(stages), dtype=np.bool_)
            for chosen, (may_read, may_not) in zip(choice, options, strict=True):
                able &= may_read if chosen else may_not
            rows = np.flatnonzero(able)
            if not len(rows):
                continue
            more, owed = sent[rows], due[rows]
            for net in range(wide):
                reads = level.reads[net][stages[rows]] & live[rows, net]
                if any(
                    chosen and net in g.inputs for chosen, g in zip(choice, groups, strict=True)
                ):
                    reads = live[rows, net]
                more[reads, net] += level.times_ns[net]
                owed[reads, net] = np.maximum(owed[reads, net] - relief[net][rows[reads]], 0.0)
            for chosen, number, group in zip(choice, self._groups, groups, strict=True):
                for net in group.inputs if not chosen else ():
                    share = costs.skeleton.share(net, group) * (1 - 1e-9)
                    away_ns = level.stages.away_ns[number][stages[rows]] * share
                    owed[:, net] += np.floor(away_ns) * live[rows, net]
            self._charge(len(rows))
            made = np.column_stack([more, owed, left[rows]])
            yield start[rows], made, parents[rows]

    def _options(
        self,
        number: int,
        stages: Indices,
        load_ns: Floats,
        due: Floats,
        slack_ns: Floats,
    ) -> tuple[Bools, Bools]:
        """Return whether stages may read all inputs of a group, and whether they may do without."""
        level, group = self._program.level, self._costs.skeleton.feeders[number]
        inputs = list(group.inputs)
        away = level.stages.away_ns[number][stages] > 0
        remote_ns = level.stages.remote_ns[number][stages]
        # With no chain of its own a device gains nothing but time of others by reading.
        helps = (due[:, inputs] > 0).any(axis=1) & (slack_ns >= min(group.remote_ns))
        return away | helps, ~away | (load_ns + remote_ns <= level.limit_ns)


def _columns(flags: Sequence[Bools], rows: Indices) -> Bools:
    """Return flags of some rows, a column for each sequence."""
    result = np.zeros((len(rows), len(flags)), dtype=np.bool_)
    for column, flag in enumerate(flags):
        result[:, column] = flag[rows]
    return result


def _flags(count: int, places: Indices) -> Bools:
    flags = np.zeros(count, dtype=np.bool_)
    flags[places] = True
    return flags


def _parents(state: int, labels: Indices) -> Indices:
    return np.column_stack([np.full(len(labels), state, dtype=np.intp), labels])


def _undominated(ideals: Indices, amounts: Floats) -> tuple[Indices, Indices]:
    """Return the rows to keep, by ideal, and for every row the place of one that stands for it.

    That is one of the same ideal that is nowhere larger.
    """
    order = np.lexsort((amounts.sum(axis=1), ideals))
    borders = np.flatnonzero(np.diff(ideals[order])) + 1
    made = np.zeros(len(order), dtype=np.intp)
    kept: list[int] = []
    for rows in np.split(order, borders):
        others = amounts[rows]
        while len(rows):
            # Of the least sum, so nothing else is nowhere larger.
            worse = (others >= others[0]).all(axis=1)
            made[rows[worse]] = len(kept)
            kept.append(int(rows[0]))
            rows, others = rows[~worse], others[~worse]
    return np.array(kept, dtype=np.intp), made
