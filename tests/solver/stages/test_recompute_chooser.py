"""What runs again in stages of a plan, and choices between the last two steps along hulls."""

import itertools
import random

from solver import Device, Operator, PartitionPlan, PartitionProblem, evaluate
from solver.model.training import Backward
from solver.stages.recompute_chooser import RecomputeChooser, _between, _OwnedPart, _reached, _Step
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


def test_what_is_sent_runs_again_where_nothing_of_it_is_kept():
    """Stages of one operator each, whose residuals do not fit as often as the schedule holds."""
    layers = [
        Operator(
            f"o{at}",
            5,
            (f"o{at - 1}",) * (at > 0),
            backward=Backward(latency_ns=10, residual_bytes=100, recomputable=True),
        )
        for at in range(3)
    ]
    problem = PartitionProblem(
        layers,
        [Device(f"d{at}", 150) for at in range(3)],
        memory_model="training",
        recompute="auto",
        schedule="1f1b",
        microbatches=4,
    )
    plan = PartitionPlan({f"o{at}": f"d{at}" for at in range(3)}, ("d0", "d1", "d2"))
    assert not evaluate(problem, plan).feasible
    completed = RecomputeChooser(problem).completed(plan)
    assert completed.recomputed == {"o0", "o1"}
    assert evaluate(problem, completed).feasible
