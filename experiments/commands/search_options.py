"""The options of a search: how long, by what, and without which steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

import typer

from experiments.commands.completions import (
    complete_described,
    complete_planners,
    complete_steps,
)
from solver import SOLVERS

SEARCH_PANEL: Final = "Search"

SOLVER_DESCRIPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "auto": "picks one that proves, and the answer names it",
        "greedy": "the size-based heuristic, the baseline",
        "chain": "the best cut of a fixed order",
        "ideal-dp": "exact, for graphs with few ideals",
        "coarse": "a plan and a bound of graphs too large for cp-sat",
        "cp-sat": "exact, by constraint programming",
    }
)

LimitOption = Annotated[
    float, typer.Option("--time-limit", metavar="SECONDS", help="For each search.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="COUNT",
        help="Search threads; one per core, but at least three, if left out.",
    ),
]
SeedOption = Annotated[
    int, typer.Option("--seed", metavar="NUMBER", help="Of every random choice.")
]
DeterministicOption = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="The same plan in every run on any number of workers; the time limit then counts "
        "seconds of work, which may take longer.",
    ),
]
SolverOption = Annotated[
    str,
    typer.Option(
        "--solver",
        metavar="NAME",
        help=f"One of {', '.join(SOLVERS)}; auto picks one that proves, and the answer names it.",
        autocompletion=complete_described(SOLVER_DESCRIPTIONS),
    ),
]
SolversOption = Annotated[
    list[str] | None,
    typer.Option(
        "--solver",
        metavar="NAME",
        help=f"Some of {', '.join(SOLVERS)}, with commas or repeated; greedy, chain and auto if "
        "left out.",
        autocompletion=complete_described(SOLVER_DESCRIPTIONS),
        rich_help_panel=SEARCH_PANEL,
    ),
]


PlannersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--planner",
        metavar="NAME",
        help="Some of those that fxpartition planners lists, with commas or repeated; if left "
        "out, greedy, chain, auto and every peer that answers within seconds.",
        autocompletion=complete_planners,
        rich_help_panel=SEARCH_PANEL,
    ),
]


WithoutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="STEP",
        help="A step, as --steps names it, that the search leaves out. May be repeated.",
        autocompletion=complete_steps,
        rich_help_panel=SEARCH_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """How long and by what each plan is searched for."""

    PANEL: ClassVar[str] = SEARCH_PANEL

    time_limit: LimitOption = 60.0
    workers: WorkersOption = None
    seed: SeedOption = 0
    deterministic: DeterministicOption = False


@dataclass(frozen=True, slots=True)
class SearchOptions(LimitOptions):
    """How a plan is searched for."""

    solver: SolverOption = "auto"


# -- what comes out -----------------------------------------------------------------------
