"""Steps of stages over positions, against looking at every start and every end."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from solver.bounds.regional.position_steps import Cells, StageKind, Steps, few_kinds


def random_cells(rng):
    count = rng.randint(1, 9)
    borders = np.cumsum([0, *(rng.choice((0, 1, 3, 7)) for _ in range(count))])
    held = np.cumsum([rng.randint(0, 4) for _ in range(count + 1)])
    return Cells(
        low=borders[:-1],
        high=borders[1:],
        arriving=np.array([rng.randint(0, 5) for _ in range(count)]),
        invalid_end=np.array([0] * count),
        leaving=np.array([rng.randint(0, 5) for _ in range(count)] + [0]),
        most_held=held[:-1] + np.array([rng.randint(0, 2) for _ in range(count)]),
        least_held=held,
    )


def farthest(cells, bottleneck_ns, limit, kind, is_first):
    """Return the farthest end of a stage from `limit` or before, by looking at all."""
    capacity = 10**9 if kind.capacity_bytes is None else kind.capacity_bytes
    room = int(bottleneck_ns / kind.slowness) + 1
    if not kind.pays:
        return max(limit, min(limit + room, cells.total))
    starts = [(0, 0)]
    for cell in range(len(cells.low)):
        if not is_first and cells.low[cell] <= limit:
            head = min(cells.high[cell], limit) - cells.arriving[cell]
            starts.append((int(head), int(cells.most_held[cell])))
    best = limit
    for (head, held), end in itertools.product(starts, range(len(cells.end_low))):
        last = min(int(cells.end_high[end]), head + bottleneck_ns - int(cells.leaving[end]))
        if last >= cells.end_low[end] and cells.least_held[end] <= held + capacity:
            best = max(best, min(last, limit + room))
    return min(best, cells.total)


KINDS = [
    StageKind(None, 1.0, True),
    StageKind(3, 1.0, True),
    StageKind(6, 2.0, True),
    StageKind(None, 1.5, False),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_farthest_of_all_starts_and_ends(kind):
    reached = set()
    for seed in range(150):
        rng = random.Random(seed)
        cells = random_cells(rng)
        bottleneck_ns = rng.randint(0, 15)
        steps = Steps(cells, bottleneck_ns)
        for limit in range(cells.total + 1):
            for is_first in (False, True):
                end = steps.end(limit, kind, is_first=is_first)
                assert end == farthest(cells, bottleneck_ns, limit, kind, is_first), (seed, limit)
                reached.add(end - limit)
    assert len(reached) > 5


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_is_the_first_position_that_gets_there(kind):
    for seed in range(150):
        rng = random.Random(seed)
        cells = random_cells(rng)
        steps = Steps(cells, rng.randint(0, 15))
        for needed in range(cells.total + 1):
            first = next(p for p in range(needed + 1) if steps.end(p, kind) >= needed)
            assert steps.start(needed, kind) == first, (seed, needed)


@pytest.mark.parametrize("rooms", [(None, 10, 20, 40), tuple(range(500))], ids=["few", "many"])
def test_alike_kinds_count_as_their_best_until_there_are_few_sets(rooms):
    rng = random.Random(0)
    count = max(32, len(rooms))
    kinds = Counter(
        StageKind(rng.choice(rooms), rng.choice((1.0, 1.5, 3.0)), rng.random() < 0.9)
        for _ in range(count)
    )
    few = few_kinds(kinds, 2000)
    assert sum(few.values()) == count
    assert np.prod([count + 1 for count in few.values()]) <= 2000
    # Every device has one of the new kinds that is at least as good.
    for kind in kinds:
        assert any(kind.best_of(better) == better for better in few)
    assert few_kinds(few, 2000) == few
