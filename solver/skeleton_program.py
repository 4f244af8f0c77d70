"""What sets of devices can run at the end of a plan, by the ideal of a skeleton before it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.ideal_costs import Bools, Floats, Indices
from solver.skeleton_stages import StageCosts, Stages

Sends = npt.NDArray[np.int32]
Kind = tuple[int, float]
"""Number of a class of devices, and memory in bytes."""

_NEVER = 1 << 29
"""Nanoseconds that no limit admits."""


@dataclass(frozen=True, slots=True)
class KindSets:
    """Sets of devices up to exchanges within a kind, the smaller ones first; set 0 is empty.

    Attributes
    ----------
    counts : tuple of tuple of int
        Devices of each kind in each set.
    larger, smaller : tuple of tuple of (int, int)
        For each set the pairs (kind, set with one device of that kind more, or less).
    """

    counts: tuple[tuple[int, ...], ...]
    larger: tuple[tuple[tuple[int, int], ...], ...]
    smaller: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, limits: Sequence[int], slots: int) -> KindSets:
        """List the sets of at most `slots` devices, given how many there are of each kind."""
        ranges = [range(limit + 1) for limit in limits]
        counts = sorted((c for c in itertools.product(*ranges) if sum(c) <= slots), key=sum)
        number = {c: i for i, c in enumerate(counts)}

        def neighbours(step: int) -> tuple[tuple[tuple[int, int], ...], ...]:
            return tuple(
                tuple(
                    (k, number[other])
                    for k in range(len(limits))
                    if (other := (*c[:k], c[k] + step, *c[k + 1 :])) in number
                )
                for c in counts
            )

        return cls(tuple(counts), neighbours(1), neighbours(-1))


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """What some devices can run at the end of a plan, by the ideal before.

    Attributes
    ----------
    reached : Bools, shape (ideals,)
        Whether they can run all outside it.
    sends_ns : Sends, shape (wide values, ideals)
        The least time in which each wide value is sent to those of them that read it.
    owed_ns : Sends, shape (wide values, ideals)
        The same, and what is due if chains that one of them needs run before all that read it.
    """

    reached: Bools
    sends_ns: Sends
    owed_ns: Sends

    @classmethod
    def nothing(cls, wide: int, ideals: int) -> Rest:
        """Return the rest that no device can run anything of."""
        shape = (wide, ideals)
        return cls(
            np.zeros(ideals, dtype=np.bool_),
            np.full(shape, _NEVER, dtype=np.int32),
            np.full(shape, _NEVER, dtype=np.int32),
        )

    def end(self) -> None:
        """Let everything be done."""
        self.reached[-1], self.sends_ns[:, -1], self.owed_ns[:, -1] = True, 0, 0

    def join(self, other: Rest) -> None:
        """Let these devices do whatever `other` can."""
        np.logical_or(self.reached, other.reached, out=self.reached)
        np.minimum(self.sends_ns, other.sends_ns, out=self.sends_ns)
        np.minimum(self.owed_ns, other.owed_ns, out=self.owed_ns)


class Level:
    """Stages within a limit on the load, and what they say of the rest of a plan.

    Parameters
    ----------
    costs : StageCosts
    stages : Stages
    limit_ns : int
    """

    def __init__(self, costs: StageCosts, stages: Stages, limit_ns: int) -> None:
        self.stages, self.limit_ns = stages, limit_ns
        wide = costs.skeleton.wide
        self._makes = [made[stages.end] & ~made[stages.start] for made in costs.made]
        self._times_ns = [np.int32(min(net.time_ns, _NEVER // 256)) for net in wide]
        # Whether some device must read a value here, and what is due for it otherwise.
        self._must = [costs.reads(net, stages) for net in range(len(wide))]
        self._due_ns: list[Sends] = [np.zeros(len(stages.start), dtype=np.int32) for _ in wide]
        least_ns = np.minimum.reduce(stages.load_ns)
        for number, group in enumerate(costs.skeleton.feeders):
            # No other way is within the limit.
            must = least_ns + stages.remote_ns[number] > limit_ns
            paid_ns = sum(wide[net].time_ns for net in group.inputs)
            for net in group.inputs:
                self._must[net] = self._must[net] | must
                # Whoever runs the chains reads all inputs, or makes them and sends for the chains.
                share = stages.away_ns[number] * (wide[net].time_ns / paid_ns) * (1 - 1e-9)
                due = np.minimum(share, self._times_ns[net]).astype(np.int32)
                self._due_ns[net] = np.maximum(self._due_ns[net], due)

    def steps(self, rest: Rest) -> tuple[Indices, list[Floats]]:
        """Return the stages that end where the rest can be run, and their loads by class."""
        stages = self.stages
        ready = np.flatnonzero(rest.reached[stages.end])
        sends: Floats = np.zeros(len(ready))
        for makes, owed in zip(self._makes, rest.owed_ns, strict=True):
            making = np.flatnonzero(makes[ready])
            sends[making] += owed[stages.end[ready[making]]]
        return ready, [load[ready] + sends for load in stages.load_ns]

    def extend(self, chosen: Indices, rest: Rest, more: Rest) -> None:
        """Add to `more` what `chosen` stages before `rest` reach."""
        starts, ends = self.stages.start[chosen], self.stages.end[chosen]
        more.reached[starts] = True
        for net, time_ns in enumerate(self._times_ns):
            must, due = self._must[net][chosen], self._due_ns[net][chosen]
            sends, owed = rest.sends_ns[net, ends], rest.owed_ns[net, ends]
            here = sends + time_ns
            np.minimum.at(more.sends_ns[net], starts, np.where(must, here, sends))
            elsewhere = np.maximum(owed, sends + due)
            np.minimum.at(
                more.owed_ns[net], starts, np.where(must, here, np.minimum(here, elsewhere))
            )


class Program:
    """What every set of devices can run at the end of a plan within a limit on the load.

    Parameters
    ----------
    costs : StageCosts
    stages : Stages
        Of loads of at most the limit.
    limit_ns : int
    kinds : sequence of (int, float)
        Class and memory of each kind of devices.
    sets : KindSets

    Attributes
    ----------
    level : Level
    rests : list of Rest
        By set of devices.
    """

    def __init__(
        self,
        costs: StageCosts,
        stages: Stages,
        limit_ns: int,
        kinds: Sequence[Kind],
        sets: KindSets,
    ) -> None:
        self._kinds, self._sets, self._count = kinds, sets, costs.count
        self.level = Level(costs, stages, limit_ns)
        self.rests = [Rest.nothing(len(costs.made), costs.count) for _ in sets.counts]
        self.rests[0].end()
        for rest, larger in zip(self.rests, sets.larger, strict=True):
            if not larger or not rest.reached.any():
                continue
            ready, loads = self.level.steps(rest)
            for kind, target in larger:
                more = self.rests[target]
                # One device may stay unused.
                more.join(rest)
                self.level.extend(ready[self._fits(ready, loads, kind)], rest, more)

    @property
    def reaches_all(self) -> bool:
        """Whether some devices can run everything."""
        return any(bool(rest.reached[0]) for rest in self.rests)

    def _fits(self, ready: Indices, loads: Sequence[Floats], kind: int) -> Bools:
        number, memory = self._kinds[kind]
        result: Bools = loads[number] <= self.level.limit_ns
        return result & (self.level.stages.held_bytes[ready] <= memory)

    def borders(self, slots: int, order: Sequence[int] | None) -> list[Bools]:
        """Return, for every number of slots from none to all, the ideals that these may run.

        Slots without a device are among them.

        Parameters
        ----------
        slots : int
        order : sequence of int, optional
            The kind of each slot; without it, those of all orders.
        """
        sets, stages = self._sets, self.level.stages
        alive = [np.zeros(self._count, dtype=np.bool_) for _ in sets.counts]
        for index, counts in enumerate(sets.counts):
            own = None if order is None else tuple(order.count(k) for k in range(len(counts)))
            if counts == own or (own is None and sum(counts) == slots):
                alive[index][0] = self.rests[index].reached[0]
        for state in reversed(range(len(sets.counts))):
            if not alive[state].any():
                continue
            position = slots - sum(sets.counts[state])
            for kind, rest in sets.smaller[state]:
                if order is not None and order[position] != kind:
                    continue
                ready, loads = self.level.steps(self.rests[rest])
                chosen = ready[self._fits(ready, loads, kind)]
                chosen = chosen[alive[state][stages.start[chosen]]]
                alive[rest][stages.end[chosen]] = True
                alive[rest] |= alive[state] & self.rests[rest].reached
        found = [np.zeros(self._count, dtype=np.bool_) for _ in range(slots + 1)]
        for index, counts in enumerate(sets.counts):
            found[slots - sum(counts)] |= alive[index]
        return found
