"""Pareto optima, the undominated points, and lower hulls, the optima for some price.

Source: Kung, Luccio and Preparata, "On finding the maxima of a set of vectors", J. ACM 22, 1975:
after sorting by the first number, a staircase of the other two decides if a point is dominated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Point = tuple[int, int, int, int, int, int]


def pareto(points: Iterable[Point]) -> list[Point]:
    """Return the undominated points, ascending, and one of equal ones.

    Less is better, except for the last number, an identifier. The fourth and fifth take few
    different values.
    """
    every = sorted(points)
    groups: dict[tuple[int, int], list[Point]] = {}
    for point in every:
        groups.setdefault((point[3], point[4]), []).append(point)
    if len(groups) < 2:
        return _pareto(every)
    found: list[Point] = []
    for pair in sorted(groups):
        # Points of smaller pairs are undominated by these.
        less = [point for point in found if point[3] <= pair[0] and point[4] <= pair[1]]
        better = _pareto(sorted(less + groups[pair], key=lambda point: point[:3]))
        found += [point for point in better if point[3:5] == pair]
    return sorted(found)


def _pareto(points: list[Point]) -> list[Point]:
    """Return the undominated points in the first three numbers."""
    found: list[Point] = []
    if len({point[2] for point in points}) < 2:
        for point in points:
            if not found or point[1] < found[-1][1]:
                found.append(point)
        return found
    # Second (ascending) and third (descending) numbers of the undominated points so far.
    ups: list[int] = []
    downs: list[int] = []
    for point in points:
        _, up, down, *_ = point
        place = bisect_right(ups, up)
        if place and downs[place - 1] <= down:
            continue
        start = bisect_left(ups, up)
        end = start
        while end < len(downs) and downs[end] >= down:
            end += 1
        ups[start:end], downs[start:end] = [up], [down]
        found.append(point)
    return found


def lower_hull(points: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the points at which a line of falling slope touches all from below.

    Less is better. The first number ascends; the second one falls, more and more slowly.

    Source: Andrew, "Another efficient algorithm for convex hulls in two dimensions", Information
    Processing Letters 9, 1979.
    """
    found: list[tuple[int, int]] = []
    for point in sorted(points):
        if found and point[1] >= found[-1][1]:
            continue
        while len(found) > 1 and _is_above(found[-2], found[-1], point):
            found.pop()
        found.append(point)
    return found


def _is_above(first: tuple[int, int], middle: tuple[int, int], last: tuple[int, int]) -> bool:
    """Return True if the middle of three points is not below the line between the others."""
    rise, run = first[1] - middle[1], middle[0] - first[0]
    return run * (first[1] - last[1]) >= (last[0] - first[0]) * rise
