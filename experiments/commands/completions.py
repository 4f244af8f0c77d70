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


def complete_from(
    names: Iterable[str], *, several: bool = False
) -> Callable[[str], list[Completion]]:
    """Return a completer of names.

    Parameters
    ----------
    names : iterable of str
        Offered where they begin with what was typed; of a mapping, with what they are.
    several : bool
        Several may be given with commas between them; each is offered once.
    """
    known = names if isinstance(names, Mapping) else dict.fromkeys(names, "")

    def complete(incomplete: str) -> list[Completion]:
        head, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        given = head.split(",") if comma else []
        return [
            (f"{head}{comma}{name}", what)
            for name, what in known.items()
            if name.startswith(last) and name not in given
        ]

    return complete


def complete_files(*suffixes: str) -> Callable[[str], list[Completion]]:
    """Return a completer of the files whose names end so, and of the folders on the way."""

    def complete(incomplete: str) -> list[Completion]:
        return [(path, "") for path in files(incomplete, suffixes)]

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
    return [*complete_files(".json")(incomplete), *_published(incomplete)]


def complete_planners(incomplete: str) -> list[Completion]:
    """Return the planners, after those that are written already."""
    from experiments.planners.registry import PLANNERS

    described = {name: spec.description for name, spec in PLANNERS.items()}
    return complete_from(described, several=True)(incomplete)


def complete_steps(incomplete: str) -> list[Completion]:
    """Return the steps of searches, after those that are written already."""
    from solver import step_names

    return complete_from(step_names(), several=True)(incomplete)


def complete_devices(incomplete: str) -> list[Completion]:
    """Return device files, and after a memory the classes whose speeds are known."""
    head, comma, last = incomplete.rpartition(",")
    memory, _, _ = last.partition("@")
    classes: dict[str, str] = {}
    if memory.endswith(("B", "b")):
        names = (f"{head}{comma}{memory}@{name}" for name in DEVICE_CLASSES)
        classes = dict.fromkeys(names, "a class of fxpartition devices")
    return [*complete_from(classes)(incomplete), *complete_files(".toml", ".json")(incomplete)]


def _models(incomplete: str, *suffixes: str) -> list[Completion]:
    from experiments.zoo.configurations import CONFIGURATIONS
    from experiments.zoo.models import CONFIGURATION_PREFIX, ZOO

    named = {name: spec.description for name, spec in ZOO.items()}
    if incomplete:
        # As with published workloads.
        named |= {f"{CONFIGURATION_PREFIX}{name}": e.family for name, e in CONFIGURATIONS.items()}
    return [*complete_from(named)(incomplete), *complete_files(*suffixes)(incomplete)]


def _published(incomplete: str) -> list[Completion]:
    from experiments.workloads.catalogue import PREFIX, published_names

    names = dict.fromkeys((f"{PREFIX}{name}" for name in published_names()), "a published workload")
    return complete_from(names)(incomplete)


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
