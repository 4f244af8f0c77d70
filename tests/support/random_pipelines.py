"""Random pipelines: settings of schedules, and times."""


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
