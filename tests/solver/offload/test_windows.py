"""The best row of a cycle, against all rows."""

import random

from solver.offload.windows import best_window


def test_no_row_has_a_larger_sum():
    around = 0
    for seed in range(300):
        rng = random.Random(seed)
        count = rng.randint(1, 8)
        gains = [rng.randint(-9, 9) for _ in range(count)]
        rows = [
            [(start + at) % count for at in range(length)]
            for start in range(count)
            for length in range(count + 1)
        ]
        found = list(best_window(gains))
        assert sum(gains[at] for at in found) == max(sum(gains[at] for at in row) for row in rows)
        assert sorted(found) in [sorted(row) for row in rows]
        around += {0, count - 1} <= {*found} and len(found) < count
    assert around > 30
