"""The command ``compare``: several planners on the same problems."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from experiments.commands.answers import finish_study
from experiments.commands.completions import complete_models
from experiments.commands.option_groups import with_option_groups
from experiments.commands.option_reading import (
    read_limits,
    read_planners,
    read_request,
    read_without,
)
from experiments.commands.options import (
    OUTPUT_PANEL,
    SEARCH,
    ComparedOptions,
    JsonOption,
    LimitOptions,
    PlannersOption,
    ReportOutOption,
    WithoutOption,
)
from experiments.console.exit_codes import EXIT_NOT_EQUAL
from experiments.console.output import say
from solver import PartitionError
from solver.model.quantities import counted

if TYPE_CHECKING:
    from experiments.comparison.records import Study
    from experiments.comparison.settings import CompareSettings
    from experiments.sweep.store import SweepStore
    from experiments.zoo.building import ModelSpec

_CELLS: Final = "cells.sqlite"
_DERIVED: Final = ComparedOptions()
_QUICK: Final = LimitOptions(time_limit=30.0)


@dataclass(frozen=True, slots=True)
class _RunOptions:
    """Extent of the comparison, and reuse of an earlier run."""

    quick: Annotated[
        bool,
        typer.Option("--quick", help="Two small models of the default set, within a minute."),
    ] = False
    check_splits: Annotated[
        Literal["best", "all", "none"],
        typer.Option(
            "--check-splits",
            rich_help_panel=SEARCH,
            help="Which plans the model is split by, to check that the split computes the same: "
            "the best of each case, all that are feasible, or none.",
        ),
    ] = "best"
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            rich_help_panel=OUTPUT_PANEL,
            help="Go on with what an earlier run kept in the folder of --out; on a terminal this "
            "is asked.",
        ),
    ] = False


_ALL: Final = _RunOptions()


@with_option_groups
def compare(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="As for plan; without any, the default set.",
            autocompletion=complete_models,
        ),
    ] = None,
    problem: ComparedOptions = _DERIVED,
    search: LimitOptions = _QUICK,
    planner: PlannersOption = None,
    without: WithoutOption = None,
    how: _RunOptions = _ALL,
    out: ReportOutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare exact plans with those of heuristics and of other programs on real models.

    For example:

        fxpartition compare gpt2 branches --out report

    Without --devices they are derived from each model's size: equal and
    unequal ones, so that memory binds, and roomy ones, where it does not.

    The report is written after each model, and every answer is kept at once in
    cells.sqlite beside it: after an interruption, kill -9 included, the same
    command with --resume goes on.
    """
    from experiments.comparison.settings import CompareSettings
    from experiments.problems.devices import parse_devices
    from experiments.reports.formats.writing import prepare_folder
    from experiments.zoo.models import DEFAULT_MODELS, QUICK_MODELS, resolve_model

    if how.quick and models:
        raise PartitionError("--quick has models of its own; leave it out, or the names of models")
    if how.resume and out is None:
        raise PartitionError("--resume goes on in a folder; name it by --out")
    settings = CompareSettings(
        request=read_request(replace(problem, devices=None)),
        device_sets={text: parse_devices(text, "--devices") for text in problem.devices or ()},
        planners=read_planners(planner),
        limits=read_limits(search),
        without=read_without(without),
        check_splits=how.check_splits,
    )
    default = QUICK_MODELS if how.quick else DEFAULT_MODELS
    sources = [resolve_model(name) for name in dict.fromkeys(models or default)]
    if out is not None:
        prepare_folder(out)

    study = _compared(sources, settings, out, how.resume)
    if all(record.reason for record in study.models):
        raise PartitionError(f"no model could be compared: {study.models[0].reason}")
    with _resumable(out):
        finish_study(study, out, as_json)
    if not all(check.equal for check in study.checks):
        raise typer.Exit(EXIT_NOT_EQUAL)


def _compared(
    sources: Sequence[ModelSpec | Path], settings: CompareSettings, out: str | None, resume: bool
) -> Study:
    """Run a comparison, and write its report to the folder `out` after each model."""
    from experiments.console.progress import ProgressLine
    from experiments.reports.formats.writing import write_report
    from experiments.sweep.compare import run_comparison
    from experiments.sweep.store import memory_store, open_store

    with memory_store() if out is None else open_store(Path(out, _CELLS)) as store:
        resume = resume or _is_wanted(store)
        with _resumable(out), ProgressLine() as progress:
            return run_comparison(
                sources,
                settings,
                progress,
                store,
                resume=resume,
                between=None if out is None else partial(write_report, path=out, is_last=False),
            )


@contextlib.contextmanager
def _resumable(out: str | None) -> Iterator[None]:
    """Print the way to resume if the run ends early."""
    try:
        yield
    except BaseException:
        if out is not None:
            say(f"what was done is kept; --resume goes on in {out}")
        raise


def _is_wanted(store: SweepStore) -> bool:
    """Return True if a store has results and the user, asked at a terminal, resumes from them."""
    cells = store.cells()
    if not cells:
        return False
    held = f"an earlier run kept {counted(cells, 'answer')} here"
    if sys.stdin.isatty() and sys.stderr.isatty():
        return typer.confirm(f"{held}; go on with them?", default=True, err=True)
    say(f"{held}; --resume goes on with them")
    return False
