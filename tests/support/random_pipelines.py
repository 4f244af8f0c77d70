"""Random pipelines: settings of schedules, and times; and what GPipe takes by a formula."""

from solver.evaluation.timeline import Task
from solver.model.schedules import PASSES


def random_settings(rng):
    """Keyword arguments of `action_tables`."""
    return {
        "schedule": rng.choice(["gpipe", "1f1b"]),
        "microbatches": rng.randint(1, 7),
        "devices": rng.randint(1, 4),
        "chunks": rng.randint(1, 3),
        "backward": rng.random() < 0.7,
    }


def random_times(rng, count, most=30):
    """Times in nanoseconds, a fifth of them 0."""
    return tuple(0 if rng.random() < 0.2 else rng.randint(1, most) for _ in range(count))


def gpipe_step_ns(times, microbatches):
    """What a step of GPipe takes in a chain of ranks with one stage each: two flow shops."""
    positions = range(len(times.forward_ns))
    total_ns = 0
    for step in PASSES:
        machines = [times.duration_ns(Task("action", step, p, p)) for p in positions]
        if times.overlap:
            ends = [arc if step == "forward" else arc[::-1] for arc in times.arcs]
            machines += [times.duration_ns(Task("link", step, *pair)) for pair in ends]
        total_ns += sum(machines) + (microbatches - 1) * max(machines)
    return total_ns
