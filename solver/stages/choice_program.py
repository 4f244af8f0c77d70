"""The Pareto-optimal choices of the operators of a part to recompute, in numbers.

Operators are decided in the execution order, for or against recomputation. Later costs of a choice
depend on the undecided operators only through storages that they read or own: if a recomputed
operator reads the storage, possibly as an anchor, or if its owner is recomputed. (An operator comes
before a storage it reads if another one writes into its own storage and reads that.) So choices
that agree in these are compared, and dominated ones are dropped: variable elimination with sets of
Pareto optima in place of numbers (Dechter, "Bucket elimination: a unifying framework for
reasoning", Artificial Intelligence 113, 1999). Layers of transformers have 30 to 100 such choices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from solver.stages.pareto import Point, pareto

_MOST_CHOICES = 4000
"""Most choices of a part while it is solved; further ones are dropped."""
_MOST_STATES = 256
Amounts = tuple[int, int, int, int]
"""Time, bytes kept, bytes held for sends, and the kept bytes that exist before the part.

The amounts of a choice also have the peak of its recomputation, which is no sum: the bytes above
the peak of the backward pass."""


class Candidate(NamedTuple):
    """An operator that may be recomputed.

    If it is recomputed, `amounts` are the changes of the amounts, `peak_bytes` the peak meanwhile
    if no later operator is, and `less_bytes` those by which earlier peaks are lower, as its own are
    not there yet. `reads` are the storages that it reads, of candidates or `anchors`; True if that
    may be an anchor for it.
    """

    amounts: Amounts
    peak_bytes: int
    less_bytes: int
    is_required: bool
    reads: tuple[tuple[int, bool], ...]


class PartModel(NamedTuple):
    """A part in its own numbers; identical parts have equal models.

    `base` are the amounts without recomputation, `anchors` those added by an anchor: a candidate,
    or another operator numbered after these.
    """

    base: Amounts
    candidates: tuple[Candidate, ...]
    anchors: tuple[Amounts, ...]


_UNREAD, _READ, _AGAIN = range(3)
_Key = tuple[int, ...]
"""By storage with readers or a decision to come: no recomputed operator reads it; one does, so that
it is an anchor unless recomputed; or it is recomputed, or has to be."""
_States = dict[_Key, list[Point]]
"""Choices with their amounts and masks."""


def given_choices(model: PartModel, given: tuple[int, ...]) -> list[Point]:
    """Return the undominated ones of given choices."""
    found: list[Point] = []
    for mask in given:
        again = [own for place, own in enumerate(model.candidates) if mask >> place & 1]
        anchors = {root for own in again for root, _ in own.reads if not mask >> root & 1}
        point = _plus((*model.base, 0, mask), [model.anchors[root] for root in anchors])
        for own in again:
            point = _again(point, own, ())
        found.append(point)
    return pareto(found)


def _again(point: Point, candidate: Candidate, anchors: Iterable[Amounts], mask: int = 0) -> Point:
    """Return the amounts if a further operator is recomputed, behind all others."""
    extra_ns, kept, sent, early, peak, own = _plus(point, (candidate.amounts, *anchors))
    peak = max(peak - candidate.less_bytes, candidate.peak_bytes)
    return extra_ns, kept, sent, early, peak, own | mask


def _plus(point: Point, parts: Iterable[Amounts]) -> Point:
    extra_ns, kept, sent, early, peak, own = point
    for more in parts:
        extra_ns, kept, sent, early = (
            extra_ns + more[0],
            kept + more[1],
            sent + more[2],
            early + more[3],
        )
    return extra_ns, kept, sent, early, peak, own


def best_choices(model: PartModel) -> tuple[list[Point], bool]:
    """Return all undominated choices, and True if none was dropped."""
    candidates = model.candidates
    # The last place at which a storage matters: its last reader, or its own decision.
    last = {root: at for at, own in enumerate(candidates) for root, _ in own.reads}
    last = {root: max(at, root * (root < len(candidates))) for root, at in last.items()}
    # Without such a reader, a recomputed storage serves just as an anchor does.
    is_strict = {root for own in candidates for root, may_stay in own.reads if not may_stay}
    states: _States = {(): [(*model.base, 0, 0)]}
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
                more_anchors = [model.anchors[root] for root in anchors]
                again = [_again(point, candidate, more_anchors, 1 << at) for point in points]
                found.setdefault(tuple(there[number] for number in stays), []).append(again)
        read = [read[number] for number in stays]
        states, is_whole = _few({key: _best(own) for key, own in found.items()})
        is_complete = is_complete and is_whole
    if not states:
        # The rules of required recomputation contradict each other: no choice is known.
        return [(*model.base, 0, 0)], False
    return _best([*states.values()]), is_complete


def _new_anchors(
    candidate: Candidate, at: int, count: int, place: dict[int, int], there: list[int]
) -> list[int] | None:
    """Recompute a candidate: update the states of its reads in `there`; return the new anchors.

    None if it must not, as a storage that it reads is not recomputed.
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
    """Drop choices if there are too many; return True if none was dropped."""
    if len(states) <= _MOST_STATES and sum(map(len, states.values())) <= _MOST_CHOICES:
        return states, True
    # Keep the states with the quickest choices.
    keys = sorted(states, key=lambda key: states[key][0])[:_MOST_STATES]
    most = max(2, _MOST_CHOICES // len(keys))
    found: _States = {}
    for key in keys:
        points = states[key]
        step = max(1, (len(points) - 1) / (most - 1))
        count = min(len(points), most)
        found[key] = [points[round(step * number)] for number in range(count)]
    return found, False
