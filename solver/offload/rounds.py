"""The steady state of a round in which loads of weights run ahead of the units that need them.

A round is one forward. Every event of it (a load arrives, a unit ends) waits for events of this
round or of earlier ones that are the same whatever the times are: a buffer is emptied in the order
in which it is filled, so that the unit which makes room for a load follows from bytes alone. So the
timeline is linear over the maximum and the sum, and the time of a round in the steady state is the
largest ratio of time to rounds over the cycles of waiting events (Baccelli, Cohen, Olsder, Quadrat,
Synchronization and Linearity, 1992, theorem 3.23). Cycles are found as in Lawler, Combinatorial
Optimization, 1976, section 3.13: take the ratio of any cycle, look for one that is longer at this
ratio, and repeat; where none is, the ratio is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, get_args

Prefetch = Literal["buffer", "next", "none"]
PREFETCHES: Final[tuple[Prefetch, ...]] = get_args(Prefetch)
"""When loads begin; see ``docs/offload.md``."""


@dataclass(frozen=True, slots=True)
class StreamedStep:
    """A streamed unit in the cyclic order of a round.

    Its weights come by `link`; the buffer behind it has the same number. `before_ns` is the time
    from the end of the streamed unit before it, of any link, to that at which it is due.
    `size_bytes`, which is positive, is held in the buffer from the start of the load until the unit
    has run.
    """

    link: int
    before_ns: int
    run_ns: int
    load_ns: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Wait:
    """Event `source` of `rounds` rounds before, and the time from it to this event."""

    source: int
    time_ns: int
    rounds: int


def round_ns(
    steps: Sequence[StreamedStep],
    room_of: Sequence[int | None],
    *,
    prefetch: Prefetch = "buffer",
    enough_ns: Fraction | None = None,
) -> Fraction:
    """Return the time of a round in the steady state.

    There is at least one step. `room_of` are bytes of the buffer of each link, at least those of
    its largest step; None is unlimited. By `prefetch`, a load begins when the buffer has room
    ("buffer"), when the streamed unit before it begins to run (of a round's first unit, when it is
    due; "next"), or when its unit is due ("none"). From `enough_ns` on any value from there to the
    true one may be returned.
    """
    waits = _waits(steps, room_of, prefetch)
    ratio = _least_ratio(steps)
    while enough_ns is None or ratio < enough_ns:
        longer = _longer_cycle(waits, ratio)
        if longer is None:
            break
        ratio = longer
    return ratio


def _least_ratio(steps: Sequence[StreamedStep]) -> Fraction:
    """Return the larger ratio of two kinds of cycles: all units, and all loads of a link."""
    loads: dict[int, int] = {}
    for step in steps:
        loads[step.link] = loads.get(step.link, 0) + step.load_ns
    work_ns = sum(step.before_ns + step.run_ns for step in steps)
    return Fraction(max(work_ns, *loads.values()))


def _waits(
    steps: Sequence[StreamedStep], room_of: Sequence[int | None], prefetch: Prefetch
) -> list[list[_Wait]]:
    """Return the predecessors of each event: event 2k is the arrival of step k, 2k + 1 its end."""
    of_link: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        of_link.setdefault(step.link, []).append(index)
    waits: list[list[_Wait]] = [[] for _ in range(2 * len(steps))]
    for index, step in enumerate(steps):
        before = (index or len(steps)) - 1
        waits[2 * index + 1] = [
            _Wait(2 * before + 1, step.before_ns + step.run_ns, int(index == 0)),
            _Wait(2 * index, step.run_ns, 0),
        ]
    for link, members in of_link.items():
        sizes = [steps[index].size_bytes for index in members]
        makers = _room_makers(sizes, room_of[link]) if prefetch == "buffer" else None
        for turn, index in enumerate(members):
            load_ns = steps[index].load_ns
            waits[2 * index].append(_Wait(2 * members[turn - 1], load_ns, int(turn == 0)))
            if makers is not None:
                rounds, maker = makers[turn]
                waits[2 * index].append(_Wait(2 * members[maker] + 1, load_ns, rounds))
            if prefetch != "buffer":
                # A unit begins to run when it is due and has arrived; loads wait for the latter.
                opener = members[turn - 1] if turn and prefetch == "next" else index
                due_ns = steps[opener].before_ns
                waits[2 * index].append(
                    _Wait(2 * ((opener or len(steps)) - 1) + 1, due_ns + load_ns, int(opener == 0))
                )
    return waits


def _room_makers(sizes: list[int], room: int | None) -> list[tuple[int, int]] | None:
    """Return, for each load, the last one that must have left the buffer before it starts.

    As (rounds before, turn); None if the buffer is unlimited.
    """
    if room is None:
        return None
    count, total = len(sizes), sum(sizes)
    makers = []
    for turn, size in enumerate(sizes):
        # Whole rounds that the buffer holds besides this load.
        laps, left = divmod(room - size, total)
        back = 0
        while True:
            back += 1
            left -= sizes[(turn - back) % count]
            if left < 0:
                break
        rounds, maker = divmod(turn - back, count)
        makers.append((laps - rounds, maker))
    return makers


def _longer_cycle(waits: list[list[_Wait]], ratio: Fraction) -> Fraction | None:
    """Return the ratio of a cycle that is larger than `ratio`; None if there is none."""
    scale, per_round = ratio.denominator, ratio.numerator
    arcs = [
        [(wait.source, wait.time_ns * scale - wait.rounds * per_round) for wait in entry]
        for entry in waits
    ]
    times = [0] * len(arcs)
    parent = [-1] * len(arcs)
    while True:
        is_settled = True
        for event, entry in enumerate(arcs):
            latest = times[event]
            for number, (source, time) in enumerate(entry):
                if times[source] + time > latest:
                    latest = times[source] + time
                    parent[event] = number
                    is_settled = False
            times[event] = latest
        if is_settled:
            return None
        found = _cycle_of(waits, parent)
        if found is not None:
            return found


def _cycle_of(waits: list[list[_Wait]], parent: list[int]) -> Fraction | None:
    """Return the ratio of a cycle of latest waits, which is longer than the ratio tried."""
    seen = [-1] * len(waits)
    for first in range(len(waits)):
        event = first
        while seen[event] < 0 and parent[event] >= 0:
            seen[event] = first
            event = waits[event][parent[event]].source
        if seen[event] == first and parent[event] >= 0:
            time, rounds, last = 0, 0, event
            while True:
                wait = waits[event][parent[event]]
                time, rounds, event = time + wait.time_ns, rounds + wait.rounds, wait.source
                if event == last:
                    return Fraction(time, rounds)
    return None
