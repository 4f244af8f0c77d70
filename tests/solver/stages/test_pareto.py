"""Pareto optima and lower hulls against what their definitions say."""

import random

from solver.stages.pareto import lower_hull, pareto


def is_as_good(one, other):
    return all(a <= b for a, b in zip(one[:5], other[:5], strict=True))


def test_what_is_left_is_what_no_other_point_is_as_good_as():
    rng = random.Random(0)
    for _ in range(400):
        widths = [rng.choice((1, 3, 9)) for _ in range(3)]
        few = [rng.choice((1, 3)) for _ in range(2)]
        points = [
            (*(rng.randrange(width) for width in (*widths, *few)), number)
            for number in range(rng.randrange(30))
        ]
        found = pareto(points)
        assert found == sorted(found)
        kept = {point[:5] for point in found}
        assert len(kept) == len(found)
        for point in points:
            better = [o for o in points if is_as_good(o, point) and o[:5] != point[:5]]
            assert (point[:5] in kept) == (not better)


def test_the_hull_has_what_is_best_for_some_price():
    rng = random.Random(1)
    for _ in range(200):
        points = [(rng.randrange(12), rng.randrange(12)) for _ in range(rng.randint(1, 12))]
        hull = lower_hull(points)
        assert hull[0] == min(points)
        assert hull[-1][1] == min(size for _, size in points)
        for price in (0, 0.2, 1 / 3, 0.5, 1, 1.5, 3, 7, 1000):
            cheapest = min(time + price * size for time, size in points)
            assert abs(min(time + price * size for time, size in hull) - cheapest) < 1e-9
        # None is on the line between its neighbours, or above it.
        for a, b, c in zip(hull, hull[1:], hull[2:], strict=False):
            assert (b[0] - a[0]) * (a[1] - c[1]) < (c[0] - a[0]) * (a[1] - b[1])
