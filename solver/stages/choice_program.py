"""The choices of what runs again in a part, as numbers: those that are worse than no other.

Operators are decided in the execution order, for or against running again. What the choice costs
later depends on the undecided alone through storages that they read: whether one runs again, is an
anchor already, or neither. So choices that agree in these are compared, and the worse are left out:
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


_Key = tuple[bool, ...]
"""By storage that is still to be read, whether it is there for what runs again."""
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
    last = {root: at for at, own in enumerate(model.candidates) for root, _ in own.reads}
    states: _States = {(): [(*model.base, 0)]}
    read: list[int] = []
    is_complete = True
    for at, candidate in enumerate(model.candidates):
        more = [root for root, _ in candidate.reads if root not in read]
        states = {(*key, *(False for _ in more)): own for key, own in states.items()}
        read += more
        # What is read later, and the candidate itself if it is.
        place = {root: number for number, root in enumerate(read)}
        stays = [number for number, root in enumerate(read) if last[root] > at]
        is_read = at in last
        found: dict[_Key, list[list[Point]]] = {}
        for key, points in states.items():
            if not candidate.is_required:
                rest = tuple(key[number] for number in stays)
                found.setdefault((*rest, *(False,) * is_read), []).append(points)
            missing = [own for own in candidate.reads if not key[place[own[0]]]]
            if all(may_stay for _, may_stay in missing):
                there = list(key)
                for root, _ in missing:
                    there[place[root]] = True
                parts = (candidate.amounts, *(model.anchors[root] for root, _ in missing))
                again = [_plus(point, parts, 1 << at) for point in points]
                rest = tuple(there[number] for number in stays)
                found.setdefault((*rest, *(True,) * is_read), []).append(again)
        read = [read[number] for number in stays] + [at] * is_read
        states, is_whole = _few({key: _best(own) for key, own in found.items()})
        is_complete = is_complete and is_whole
    if not states:
        # Rules of what must run again contradict each other: no choice is known.
        return [(*model.base, 0)], False
    return _best([*states.values()]), is_complete


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
