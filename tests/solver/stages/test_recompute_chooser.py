"""Choices between the last two steps along hulls, against all choices."""

import itertools
import random

from solver.stages.recompute_chooser import _between, _OwnedPart, _reached, _Step
from solver.stages.recompute_hull import Choice, Part


def hull(rng):
    """Returns choices with falling bytes whose time for each byte grows."""
    rates = sorted(rng.sample(range(1, 30), rng.randint(1, 4)))
    choices = [Choice(0, 100, ())]
    for rate in rates:
        size = rng.randint(1, 9)
        last = choices[-1]
        choices.append(Choice(last.extra_ns + rate * size, last.held_bytes - size, ()))
    return tuple(choices)


def test_all_choices_between_two_steps_are_found_the_shortest_first():
    rng, seen = random.Random(0), 0
    for _ in range(200):
        parts = [
            _OwnedPart(0, rng.randint(1, 3), Part((number,), number == 0, False), hull(rng))
            for number in range(rng.randint(1, 4))
        ]
        steps = sorted(
            _Step(
                (after.extra_ns - before.extra_ns)
                / ((before.held_bytes - after.held_bytes) * part.times),
                number,
                choice,
                (before.held_bytes - after.held_bytes) * part.times,
            )
            for number, part in enumerate(parts)
            for choice, (before, after) in enumerate(itertools.pairwise(part.hull), start=1)
        )

        def measured(reached, parts=parts):
            chosen = [part.hull[at] for part, at in zip(parts, reached, strict=True)]
            held = sum(c.held_bytes * p.times for c, p in zip(chosen, parts, strict=True))
            return sum(choice.extra_ns for choice in chosen), held

        count = rng.randint(1, len(steps))
        most_ns = measured(_reached(parts, steps[:count]))[0]
        most_bytes = measured(_reached(parts, steps[: count - 1]))[1]
        every = {measured(at) for at in itertools.product(*(range(len(p.hull)) for p in parts))}
        expected = sorted(at for at in every if at[0] < most_ns and at[1] < most_bytes)
        found = [measured(reached) for reached in _between(parts, steps, count)]
        assert found == expected
        seen += len(found)
    assert seen > 50
