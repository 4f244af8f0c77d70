"""What the shell offers when a person presses the tabulator: names, without loading torch.

Where none fits, shells offer files by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

Completion = tuple[str, str]
"""What may be written, and what it is, which zsh and fish show beside it."""

SOLVER_DESCRIPTIONS: Final = {
    "auto": "picks one that proves, and the answer names it",
    "greedy": "the size-based heuristic, the baseline",
    "chain": "the best cut of a fixed order",
    "ideal-dp": "exact, for graphs with few ideals",
    "coarse": "a plan and a bound of graphs too large for cp-sat",
    "cp-sat": "exact, by constraint programming",
}


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


def complete_built_models(incomplete: str) -> list[Completion]:
    """Return the models of the zoo, and published configurations once one is begun."""
    from experiments.zoo.configurations import CONFIGURATIONS
    from experiments.zoo.models import CONFIGURATION_PREFIX, ZOO

    named = {name: spec.description for name, spec in ZOO.items()}
    if incomplete:
        # They are many, and few people want one.
        named |= {f"{CONFIGURATION_PREFIX}{name}": e.family for name, e in CONFIGURATIONS.items()}
    return complete_from(named)(incomplete)


def complete_models(incomplete: str) -> list[Completion]:
    """Return what :func:`complete_built_models` does, and likewise published workloads."""
    return complete_built_models(incomplete) + (
        complete_published(incomplete) if incomplete else []
    )


def complete_published(incomplete: str) -> list[Completion]:
    """Return published workloads."""
    from experiments.workloads.catalogue import PREFIX, published_names

    names = dict.fromkeys((f"{PREFIX}{name}" for name in published_names()), "a published workload")
    return complete_from(names)(incomplete)


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
    """Return, after a memory, the classes whose speeds are known."""
    from fx_bridge.costs.device_specs import DEVICE_SPECS

    head, comma, last = incomplete.rpartition(",")
    memory, _, _ = last.partition("@")
    if not memory.endswith(("B", "b")):
        return []
    names = (f"{head}{comma}{memory}@{name}" for name in DEVICE_SPECS)
    return complete_from(dict.fromkeys(names, "a class of fxpartition devices"))(incomplete)
