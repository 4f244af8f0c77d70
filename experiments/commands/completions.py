"""Shell completion of names, without loading torch.

Shells offer files by themselves if no name fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

Completion = tuple[str, str]
"""A name and its description, which zsh and fish show beside it."""

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
    """Return a completer of the names that begin with the typed text.

    A mapping adds descriptions. With `several` the text is a comma-separated list, in which each
    name is offered once.
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
    """Complete models of the zoo, and published configurations after their prefix."""
    from experiments.zoo.configurations import CONFIGURATIONS
    from experiments.zoo.models import CONFIGURATION_PREFIX, ZOO

    named = {name: spec.description for name, spec in ZOO.items()}
    if incomplete:
        # There are many, and few users want one.
        named |= {f"{CONFIGURATION_PREFIX}{name}": e.family for name, e in CONFIGURATIONS.items()}
    return complete_from(named)(incomplete)


def complete_models(incomplete: str) -> list[Completion]:
    """Complete models as :func:`complete_built_models`, and published workloads."""
    return complete_built_models(incomplete) + (
        complete_published(incomplete) if incomplete else []
    )


def complete_published(incomplete: str) -> list[Completion]:
    """Complete published workloads."""
    from experiments.workloads.catalogue import PREFIX, published_names

    names = dict.fromkeys((f"{PREFIX}{name}" for name in published_names()), "a published workload")
    return complete_from(names)(incomplete)


def complete_planners(incomplete: str) -> list[Completion]:
    """Complete a comma-separated list of planners."""
    from experiments.planners.registry import PLANNERS

    described = {name: spec.description for name, spec in PLANNERS.items()}
    return complete_from(described, several=True)(incomplete)


def complete_steps(incomplete: str) -> list[Completion]:
    """Complete a comma-separated list of search steps."""
    from solver import step_names

    return complete_from(step_names(), several=True)(incomplete)


def complete_devices(incomplete: str) -> list[Completion]:
    """Complete a device class after an amount of memory."""
    from fx_bridge.costs.device_presets import DEVICE_SPECS

    head, comma, last = incomplete.rpartition(",")
    memory, _, _ = last.partition("@")
    if not memory.endswith(("B", "b")):
        return []
    names = (f"{head}{comma}{memory}@{name}" for name in DEVICE_SPECS)
    return complete_from(dict.fromkeys(names, "a class of fxpartition devices"))(incomplete)
