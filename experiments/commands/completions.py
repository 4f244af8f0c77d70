"""What the shell offers when a person presses the tabulator: names and files, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

Completion = tuple[str, str]
"""What may be written, and what it is, which zsh and fish show beside it."""

DEVICE_CLASSES: Final = (
    "default",
    "cpu",
    "h200-sxm",
    "h100-sxm",
    "a100-80gb",
    "a100-40gb",
    "l40s",
    "l4",
    "a10",
    "t4",
    "v100",
    "rtx-4090",
    "rtx-3090",
)
"""The keys of ``fx_bridge.costs.device_specs.DEVICE_SPECS``: to import that loads torch, which
takes seconds."""

_MOST_FILES: Final = 200


def complete_from(names: Iterable[str], *, several: bool = False) -> Callable[[str], list[str]]:
    """Return a completer of names.

    Parameters
    ----------
    names : iterable of str
        Offered where they begin with what was typed.
    several : bool
        Several may be given with commas between them; each is offered once.
    """
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        head, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        given = head.split(",") if comma else []
        return [
            f"{head}{comma}{name}" for name in known if name.startswith(last) and name not in given
        ]

    return complete


def complete_files(*suffixes: str) -> Callable[[str], list[str]]:
    """Return a completer of the files whose names end so, and of the folders on the way."""

    def complete(incomplete: str) -> list[str]:
        return files(incomplete, suffixes)

    return complete


def complete_built_models(incomplete: str) -> list[Completion]:
    """Return the models of the zoo, published configurations and exported programs."""
    return _models(incomplete, ".pt2")


def complete_models(incomplete: str) -> list[Completion]:
    """Return what :func:`complete_built_models` does, saved problems and published workloads."""
    # They are many, and few people want one: offered once it is begun.
    published = _published(incomplete) if incomplete else []
    return [*_models(incomplete, ".json", ".pt2"), *published]


def complete_problems(incomplete: str) -> list[Completion]:
    """Return saved problems and published workloads."""
    return [*((path, "") for path in files(incomplete, (".json",))), *_published(incomplete)]


def complete_planners(incomplete: str) -> list[Completion]:
    """Return the planners, after those that are written already."""
    from experiments.planners.registry import PLANNERS

    head, comma, begun = incomplete.rpartition(",")
    return [
        (f"{head}{comma}{name}", spec.description)
        for name, spec in PLANNERS.items()
        if name.startswith(begun) and name not in head.split(",")
    ]


def complete_steps(incomplete: str) -> list[str]:
    """Return the steps of searches, after those that are written already."""
    from solver import step_names

    return complete_from(step_names(), several=True)(incomplete)


def complete_devices(incomplete: str) -> list[Completion]:
    """Return device files, and after a memory the classes whose speeds are known."""
    head, comma, last = incomplete.rpartition(",")
    memory, _, begun = last.partition("@")
    classes: list[Completion] = []
    if memory and memory[-1:] in ("B", "b"):
        classes = [
            (f"{head}{comma}{memory}@{name}", "a class of fxpartition devices")
            for name in DEVICE_CLASSES
            if name.startswith(begun)
        ]
    return [*classes, *((path, "") for path in files(incomplete, (".toml", ".json")))]


def complete_described(words: Mapping[str, str]) -> Callable[[str], list[Completion]]:
    """Return a completer of names that are described."""

    def complete(incomplete: str) -> list[Completion]:
        return [(name, what) for name, what in words.items() if name.startswith(incomplete)]

    return complete


def _models(incomplete: str, *suffixes: str) -> list[Completion]:
    from experiments.zoo.configurations import CONFIGURATIONS
    from experiments.zoo.models import CONFIGURATION_PREFIX, ZOO

    named = [(name, spec.description) for name, spec in ZOO.items()]
    if incomplete:
        # As with published workloads.
        named += [
            (f"{CONFIGURATION_PREFIX}{name}", each.family) for name, each in CONFIGURATIONS.items()
        ]
    begun = [(name, what) for name, what in named if name.startswith(incomplete)]
    return [*begun, *((path, "") for path in files(incomplete, suffixes))]


def _published(incomplete: str) -> list[Completion]:
    from experiments.workloads.catalogue import PREFIX, published_names

    names = [f"{PREFIX}{name}" for name in published_names()]
    return [(name, "a published workload") for name in names if name.startswith(incomplete)]


def files(incomplete: str, suffixes: Sequence[str]) -> list[str]:
    """Return the paths that `incomplete` may become; whatever cannot be listed has none.

    A folder that is the only choice is opened, so that the shell, which takes a single choice for
    the end of the word, goes on in it.
    """
    found = _entries(incomplete, suffixes)
    while len(found) == 1 and found[0].endswith("/"):
        inside = _entries(found[0], suffixes)
        if not inside:
            return found
        found = inside
    return found


def _entries(incomplete: str, suffixes: Sequence[str]) -> list[str]:
    head, tail = os.path.split(incomplete)
    prefix = incomplete[: len(incomplete) - len(tail)]
    try:
        with os.scandir(Path(head or ".").expanduser()) as listed:
            entries = sorted(
                f"{prefix}{entry.name}{'/' if entry.is_dir() else ''}"
                for entry in listed
                if entry.name.startswith(tail)
                and entry.name.startswith(".") <= tail.startswith(".")
                # One choice a line is what shells read.
                and entry.name.isprintable()
                and (entry.is_dir() or entry.name.lower().endswith(tuple(suffixes)))
            )
    except (OSError, ValueError, RuntimeError):  # not there, a null character, no such home
        return []
    return entries[:_MOST_FILES]
