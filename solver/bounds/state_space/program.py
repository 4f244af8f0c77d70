"""What sets of devices can run at the end of a plan, by the ideal of a skeleton before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.bounds.state_space.loose import Loose
from solver.bounds.state_space.skeleton import Skeleton
from solver.bounds.state_space.stages import SkeletonCosts, Stages
from solver.model.arrays import Bools, Floats, Indices
from solver.presolve.device_kinds import DeviceSets
from solver.stages.viable_sets import ViableSets

Sends = npt.NDArray[np.int32]
Kind = tuple[int, float]
"""Number of a class of devices, and memory in bytes."""

_NEVER = 1 << 29
"""Nanoseconds that no limit admits."""
_MOST_NS = _NEVER // 256
"""Of what one device adds to a wide value, no more is counted, so that sums fit 32 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """What some devices can run at the end of a plan, by the ideal before.

    Attributes
    ----------
    admitted : Bools, shape (ideals,)
        Whether it is of interest.
    reached : Bools, shape (ideals,)
        Whether they can run all outside it; of those that are admitted.
    sends_ns : Sends, shape (wide values, ideals)
        The least time in which each wide value is sent to those of them that read it.
    owed_ns : Sends, shape (wide values, ideals)
        The same, and what is due if chains that one of them needs run before all that read it.
    backlog : Floats, shape (ideals,)
        The fewest bytes of loose weights that are released there and do not fit on these devices.
    """

    admitted: Bools
    reached: Bools
    sends_ns: Sends
    owed_ns: Sends
    backlog: Floats

    @classmethod
    def nothing(cls, wide: int, admitted: Bools) -> Rest:
        """Return the rest that no device can run anything of."""
        ideals = len(admitted)
        shape = (wide, ideals)
        return cls(
            admitted,
            np.zeros(ideals, dtype=np.bool_),
            np.full(shape, _NEVER, dtype=np.int32),
            np.full(shape, _NEVER, dtype=np.int32),
            np.full(ideals, np.inf),
        )

    def end(self, loose: Loose) -> None:
        """Mark the full ideal as reached at no cost."""
        self.reached[-1], self.sends_ns[:, -1], self.owed_ns[:, -1] = True, 0, 0
        self.backlog[-1] = loose.released[-1]

    def join(self, other: Rest, room: float) -> None:
        """Merge in the states of `other`, giving one more device `room` bytes for loose weights."""
        np.logical_or(self.reached, other.reached & self.admitted, out=self.reached)
        np.minimum(self.sends_ns, other.sends_ns, out=self.sends_ns)
        np.minimum(self.owed_ns, other.owed_ns, out=self.owed_ns)
        left = np.maximum(other.backlog - room, 0.0)
        np.minimum(self.backlog, left, out=self.backlog)


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Stages that one device can run before some rest.

    Attributes
    ----------
    stages : Indices, shape (n,)
        Indices into the listed stages.
    load_ns : Floats, shape (n,)
        With what is owed to the rest.
    firm_ns : Floats, shape (n,)
        With what is sent to it, but for results of chains.
    room : Floats, shape (n,)
        How many bytes of loose weights fit beside.
    """

    stages: Indices
    load_ns: Floats
    firm_ns: Floats
    room: Floats

    def take(self, some: Bools | Indices) -> Steps:
        """Return some of them."""
        return Steps(self.stages[some], self.load_ns[some], self.firm_ns[some], self.room[some])


@dataclass(frozen=True, slots=True)
class Chains:
    """All chains of feeders that read a wide value.

    Attributes
    ----------
    share : float
        Of what is due for a chain's result, the largest part that is charged to the value.
    least_ns, quantum_ns : int
        The least time to send a result, and what all these times are multiples of.
    """

    share: float
    least_ns: int
    quantum_ns: int

    @classmethod
    def of(cls, skeleton: Skeleton, net: int) -> Chains:
        """Look at the chains that read one wide value."""
        groups = [group for group in skeleton.feeders if net in group.inputs and group.readers]
        times_ns = [time_ns for group in groups for time_ns in group.remote_ns]
        shares = [skeleton.share(net, group) for group in groups]
        return cls(max(shares, default=0.0), min(times_ns, default=0), math.gcd(*times_ns))

    def relief_ns(self, slack_ns: Floats) -> Sends:
        """Return how much less is due for the value if a device sends results in this time."""
        most = slack_ns if not self.quantum_ns else slack_ns // self.quantum_ns * self.quantum_ns
        relief = np.where(slack_ns >= self.least_ns, most * self.share * (1 + 1e-9) + 1, 0.0)
        return np.minimum(relief, _NEVER).astype(np.int32)


class Level:
    """Stages within a limit on the load, and what they say of the rest of a plan.

    Parameters
    ----------
    limit_ns : int
        On the load of every stage.

    Attributes
    ----------
    makes, reads : list of Bools, shape (stages,)
        By wide value: whether the stage makes it, and whether kept units on it read it.
    times_ns : list of int
        Of a transfer of each wide value.
    chains : list of Chains
        What reads each wide value outside the skeleton.
    """

    def __init__(self, costs: SkeletonCosts, stages: Stages, limit_ns: int) -> None:
        self.stages, self.limit_ns, self.loose = stages, limit_ns, costs.loose
        wide, feeders = costs.skeleton.wide, costs.skeleton.feeders
        self._made = costs.made
        self.makes = [made[stages.end] & ~made[stages.start] for made in costs.made]
        self.times_ns = [np.int32(min(net.time_ns, _MOST_NS)) for net in wide]
        self.reads = [costs.reads(net, stages) for net in range(len(wide))]
        self._groups_of = [
            [number for number, group in enumerate(feeders) if net in group.inputs]
            for net in range(len(wide))
        ]
        self.chains = [Chains.of(costs.skeleton, net) for net in range(len(wide))]
        # What is due for a value if no chain of its readers runs here.
        self._due_ns: list[Sends] = [np.zeros(len(stages.start), dtype=np.int32) for _ in wide]
        for number, group in enumerate(feeders):
            for net in group.inputs:
                # Whoever runs the chains reads all inputs, or makes them and sends for the chains.
                share = stages.away_ns[number] * costs.skeleton.share(net, group) * (1 - 1e-9)
                due = np.minimum(share, _MOST_NS).astype(np.int32)
                self._due_ns[net] = np.maximum(self._due_ns[net], due)

    def steps(self, rest: Rest) -> tuple[Steps, list[Floats]]:
        """Return the stages that end where the rest can be run, and their loads by class.

        Loads of the steps are the least of all classes, their room is that of a device without end.
        """
        stages = self.stages
        ready = np.flatnonzero(rest.reached[stages.end])
        owed: Floats = np.zeros(len(ready))
        sent: Floats = np.zeros(len(ready))
        for makes, owed_ns, sends_ns in zip(self.makes, rest.owed_ns, rest.sends_ns, strict=True):
            making = np.flatnonzero(makes[ready])
            ends = stages.end[ready[making]]
            owed[making] += owed_ns[ends]
            sent[making] += sends_ns[ends]
        loads = [load[ready] + owed for load in stages.load_ns]
        least_ns = np.minimum.reduce(loads)
        room = np.full(len(ready), float(self.loose.total))
        return Steps(ready, least_ns, least_ns - owed + sent, room), loads

    def on(self, steps: Steps, load_ns: Floats, memory: float) -> Steps:
        """Return the steps that fit on a device with some memory, where they have such loads."""
        held = self.stages.held_bytes[steps.stages]
        fits = np.flatnonzero((load_ns <= self.limit_ns) & (held <= memory))
        load = load_ns[fits]
        return Steps(
            steps.stages[fits],
            load,
            load - steps.load_ns[fits] + steps.firm_ns[fits],
            self.loose.fitting(memory - held[fits]),
        )

    def extend(self, steps: Steps, rest: Rest, more: Rest) -> None:
        """Add to `more` what some steps before `rest` reach."""
        starts, ends = self.stages.start[steps.stages], self.stages.end[steps.stages]
        released = self.loose.released
        left = rest.backlog[ends] + released[starts] - released[ends] - steps.room
        some = np.flatnonzero((left <= self.loose.waiting[starts]) & more.admitted[starts])
        steps, starts, ends, left = steps.take(some), starts[some], ends[some], left[some]
        more.reached[starts] = True
        np.minimum.at(more.backlog, starts, np.maximum(left, 0.0))
        for net, made in enumerate(self._made):
            # What is made here, or after, is settled.
            live = np.flatnonzero(made[starts])
            sends, owed = self._charges(net, steps.take(live), ends[live], rest)
            np.minimum.at(more.sends_ns[net], starts[live], sends)
            np.minimum.at(more.owed_ns[net], starts[live], owed)

    def _charges(self, net: int, steps: Steps, ends: Indices, rest: Rest) -> tuple[Sends, Sends]:
        """Return what the maker of a wide value sends, and owes, to each step and its rest."""
        must = self.reads[net][steps.stages]
        for number in self._groups_of[net]:
            # No other way is within the limit.
            must |= steps.load_ns + self.stages.remote_ns[number][steps.stages] > self.limit_ns
        sends, owed = rest.sends_ns[net, ends], rest.owed_ns[net, ends]
        time_ns = self.times_ns[net]
        here = owed + time_ns
        some = np.flatnonzero(owed > sends)
        relief = self.chains[net].relief_ns(self.limit_ns - steps.firm_ns[some])
        here[some] = np.maximum(sends[some], owed[some] - relief) + time_ns
        elsewhere = owed + self._due_ns[net][steps.stages]
        return (
            np.where(must, sends + time_ns, sends),
            np.where(must, here, np.minimum(here, elsewhere)),
        )


class Program:
    """What every set of devices can run at the end of a plan within a limit on the load.

    Parameters
    ----------
    stages : Stages
        Of loads of at most the limit.
    limit_ns : int
        On the load of every stage.
    kinds : sequence of (int, float)
        Class and memory of each kind of devices.
    at_border : sequence of Bools, shape (ideals,)
        By border between slots the ideals that can be there.

    Attributes
    ----------
    slots : int
        Devices that may be used.
    rests : list of Rest
        By set of devices.
    """

    def __init__(
        self,
        costs: SkeletonCosts,
        stages: Stages,
        limit_ns: int,
        kinds: Sequence[Kind],
        sets: DeviceSets,
        at_border: Sequence[Bools],
    ) -> None:
        self._kinds, self.sets, self._count = kinds, sets, len(costs.ideals)
        self.slots = sets.most
        self.level = Level(costs, stages, limit_ns)
        self.rests = []
        viable = ViableSets(
            sets.counts,
            sets.counts.max(axis=0).tolist(),
            sets.most,
            [costs.slowness[class_] for class_, _ in kinds],
            [room for _, room in kinds],
        ).can(costs.held.borders, limit_ns)
        for own, size in zip(viable, sets.sizes.tolist(), strict=True):
            admitted = own & at_border[self.slots - size]
            self.rests.append(Rest.nothing(len(costs.made), admitted))
        self.rests[0].end(costs.loose)
        for rest, larger in zip(self.rests, sets.larger, strict=True):
            if not larger or not rest.reached.any():
                continue
            steps, loads = self.level.steps(rest)
            for kind, target in larger:
                more = self.rests[target]
                # One device may stay without a stage.
                more.join(rest, self.idle_room(kind))
                self.level.extend(self.on(kind, steps, loads), rest, more)

    @property
    def reaches_all(self) -> bool:
        """Whether all devices can run everything."""
        return any(self.is_whole(state) for state in range(len(self.rests)))

    def is_whole(self, state: int) -> bool:
        """Whether a set has all devices that may be used, and they can run everything."""
        rest = self.rests[state]
        full = self.sets.sizes[state] == self.slots
        return bool(full and rest.reached[0]) and not rest.backlog[0]

    def on(self, kind: int, steps: Steps, loads: Sequence[Floats]) -> Steps:
        """Return the steps that fit on a device."""
        number, memory = self._kinds[kind]
        return self.level.on(steps, loads[number], memory)

    def class_of(self, kind: int) -> int:
        """Return the number of the class of a kind of devices."""
        return self._kinds[kind][0]

    def idle_room(self, kind: int) -> float:
        """Return how many bytes of loose weights fit on a device without a stage."""
        return float(self.level.loose.fitting(np.array(self._kinds[kind][1])))

    def alive(self, order: Sequence[int] | None = None) -> list[Bools]:
        """Return, for every set of devices, the ideals before the rest that it runs in some plan.

        Devices without a stage are among them.

        Parameters
        ----------
        order : sequence of int, optional
            The kind of each slot; without it, those of all orders.
        """
        sets, stages, ready = self.sets, self.level.stages, self.level.loose.ready
        alive = [np.zeros(self._count, dtype=np.bool_) for _ in self.rests]
        # The most bytes of loose weights that devices before have room for.
        hosted = [np.full(self._count, -1.0) for _ in self.rests]
        own = None if order is None else list(map(order.count, range(len(self._kinds))))
        for index, counts in enumerate(sets.counts.tolist()):
            if own in (None, counts) and self.is_whole(index):
                alive[index][0], hosted[index][0] = True, 0.0
        for state in reversed(range(len(sets))):
            if not alive[state].any():
                continue
            position = self.slots - int(sets.sizes[state])
            for kind, rest in sets.smaller[state]:
                if order is not None and order[position] != kind:
                    continue
                steps = self.on(kind, *self.level.steps(self.rests[rest]))
                steps = steps.take(alive[state][stages.start[steps.stages]])
                ends, backlog = stages.end[steps.stages], self.rests[rest].backlog
                room = hosted[state][stages.start[steps.stages]] + steps.room
                room = np.minimum(room, ready[ends])
                some = room >= backlog[ends]
                alive[rest][ends[some]] = True
                np.maximum.at(hosted[rest], ends[some], room[some])
                room = np.minimum(hosted[state] + self.idle_room(kind), ready)
                waits = alive[state] & (room >= backlog)
                alive[rest] |= waits
                hosted[rest][waits] = np.maximum(hosted[rest], room)[waits]
        return alive
