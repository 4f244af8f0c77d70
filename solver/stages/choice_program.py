"""The choices of what runs again in a part, as numbers: those that are worse than no other.

Operators are decided in the execution order, for or against running again. What the choice costs
later depends on the undecided alone through storages that they read or are: whether what runs again
reads one, and may do so as an anchor, or one runs again. (An operator comes before what it reads if
another writes into its storage and reads that.) So choices that agree in these are compared, and
the worse are left out:
variable elimination with sets of Pareto optima in place of numbers (Dechter, "Bucket elimination: a
unifying framework for reasoning", Artificial Intelligence 113, 1999). Layers of transformers have
30 to 100 such choices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from solver.stages.pareto import Point, pareto

_MOST_CHOICES = 4000
"""Of a part while it is solved; with more, some are left out."""
_MOST_STATES = 256
Amounts = tuple[int, int, int, int]
"""Time, bytes kept, bytes sent, and those of what is kept that are there before the part."""


class Candidate(NamedTuple):
    """An operator that may run again.

    Attributes
    ----------
    amounts : tuple of int
        What changes if it does.
    is_required : bool
        It must.
    reads : tuple of (int, bool)
        What it reads, candidates or `anchors`, and whether that may be an anchor for it.
    """

    amounts: Amounts
    is_required: bool
    reads: tuple[tuple[int, bool], ...]


class PartModel(NamedTuple):
    """A part in numbers of its own: alike parts have equal ones.

    Attributes
    ----------
    base : tuple of int
        The amounts if nothing runs again.
    anchors : tuple of tuple of int
        What comes to them with an anchor: a candidate, or another operator behind these.
    """

    base: Amounts
    candidates: tuple[Candidate, ...]
    anchors: tuple[Amounts, ...]


_UNREAD, _READ, _AGAIN = range(3)
_Key = tuple[int, ...]
"""By storage that is still to be read or decided: nothing that runs again reads it; something does,
so that it is an anchor if it does not run again; or it runs again, or has to."""
_States = dict[_Key, list[Point]]
"""Choices with their amounts and masks."""


def given_choices(model: PartModel, given: tuple[int, ...]) -> list[Point]:
    """Return given choices, but those that are worse than others."""
    found: list[Point] = []
    for mask in given:
        again = [own for place, own in enumerate(model.candidates) if mask >> place & 1]
        anchors = {root for own in again for root, _ in own.reads if not mask >> root & 1}
        parts = [own.amounts for own in again] + [model.anchors[root] for root in anchors]
        found.append(_plus((*model.base, mask), parts))
    return pareto(found)


def _plus(point: Point, parts: Iterable[Amounts], mask: int = 0) -> Point:
    extra_ns, kept, sent, early, own = point
    for more in parts:
        extra_ns, kept, sent, early = (
            extra_ns + more[0],
            kept + more[1],
            sent + more[2],
            early + more[3],
        )
    return extra_ns, kept, sent, early, own | mask


def best_choices(model: PartModel) -> tuple[list[Point], bool]:
    """Return all choices of which none is worse than others, and whether that is all."""
    candidates = model.candidates
    # Until when a storage counts: its last reader, or its own decision.
    last = {root: at for at, own in enumerate(candidates) for root, _ in own.reads}
    last = {root: max(at, root * (root < len(candidates))) for root, at in last.items()}
    # Where no reader asks which, what runs again is there just as an anchor is.
    is_strict = {root for own in candidates for root, may_stay in own.reads if not may_stay}
    states: _States = {(): [(*model.base, 0)]}
    read: list[int] = []
    is_complete = True
    for at, candidate in enumerate(candidates):
        new = {root for root, _ in candidate.reads} | ({at} & last.keys())
        more = sorted(new.difference(read))
        states = {(*key, *(_UNREAD for _ in more)): own for key, own in states.items()}
        read += more
        place = {root: number for number, root in enumerate(read)}
        stays = [number for number, root in enumerate(read) if last[root] > at]
        found: dict[_Key, list[list[Point]]] = {}
        for key, points in states.items():
            wanted = key[place[at]] if at in place else _UNREAD
            if not candidate.is_required and wanted != _AGAIN:
                kept = (model.anchors[at],) if wanted == _READ else ()
                own = [_plus(point, kept) for point in points] if kept else points
                found.setdefault(tuple(key[number] for number in stays), []).append(own)
            there = list(key)
            if at in place:
                there[place[at]] = _AGAIN if at in is_strict else _READ
            anchors = _new_anchors(candidate, at, len(candidates), place, there)
            if anchors is not None:
                parts = (candidate.amounts, *(model.anchors[root] for root in anchors))
                again = [_plus(point, parts, 1 << at) for point in points]
                found.setdefault(tuple(there[number] for number in stays), []).append(again)
        read = [read[number] for number in stays]
        states, is_whole = _few({key: _best(own) for key, own in found.items()})
        is_complete = is_complete and is_whole
    if not states:
        # Rules of what must run again contradict each other: no choice is known.
        return [(*model.base, 0)], False
    return _best([*states.values()]), is_complete


def _new_anchors(
    candidate: Candidate, at: int, count: int, place: dict[int, int], there: list[int]
) -> list[int] | None:
    """Let a candidate at a place run again: change what is read; return the new anchors.

    None if it may not, as what it reads does not run again.
    """
    anchors: list[int] = []
    for root, may_stay in candidate.reads:
        number = place[root]
        if at < root < count:
            there[number] = max(there[number], _READ if may_stay else _AGAIN)
        elif there[number] < _AGAIN and not may_stay:
            return None
        elif there[number] == _UNREAD:
            there[number] = _READ
            anchors.append(root)
    return anchors


def _best(found: list[list[Point]]) -> list[Point]:
    return found[0] if len(found) == 1 else pareto(itertools.chain.from_iterable(found))


def _few(states: _States) -> tuple[_States, bool]:
    """Leave choices out where there are too many, and say whether all are there."""
    if len(states) <= _MOST_STATES and sum(map(len, states.values())) <= _MOST_CHOICES:
        return states, True
    # States that something is quick in.
    keys = sorted(states, key=lambda key: states[key][0])[:_MOST_STATES]
    most = max(2, _MOST_CHOICES // len(keys))
    found: _States = {}
    for key in keys:
        points = states[key]
        step = max(1, (len(points) - 1) / (most - 1))
        count = min(len(points), most)
        found[key] = [points[round(step * number)] for number in range(count)]
    return found, False
