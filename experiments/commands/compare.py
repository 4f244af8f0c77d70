"""The command ``compare``: planners side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

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
    ComparedOptions,
    JsonOption,
    LimitOptions,
    PlannersOption,
    ReportOutOption,
    WithoutOption,
)
from experiments.console.exit_codes import EXIT_NOT_EQUAL
from solver import PartitionError

_DERIVED: Final = ComparedOptions()
_QUICK: Final = LimitOptions(time_limit=30.0)


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
    out: ReportOutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare exact plans with those of heuristics and of other programs on real models.

    For example:

        fxpartition compare gpt2 branches --out report

    Without --devices they are derived from each model's size: equal and
    unequal ones, so that memory binds, and roomy ones, where it does not.
    """
    from experiments.comparison.run import CompareSettings, run_comparison
    from experiments.console.progress import ProgressLine
    from experiments.problems.devices import parse_devices
    from experiments.reports.formats.writing import prepare_folder
    from experiments.zoo.models import DEFAULT_MODELS, resolve_model

    settings = CompareSettings(
        request=read_request(replace(problem, devices=None)),
        device_sets={text: parse_devices(text, "--devices") for text in problem.devices or ()},
        planners=read_planners(planner),
        limits=read_limits(search),
        without=read_without(without),
    )
    sources = [resolve_model(name) for name in dict.fromkeys(models or DEFAULT_MODELS)]
    if out is not None:
        prepare_folder(out)

    with ProgressLine() as progress:
        study = run_comparison(sources, settings, progress)
    if all(record.reason for record in study.models):
        raise PartitionError(f"no model could be compared: {study.models[0].reason}")
    finish_study(study, out, as_json)
    if not all(check.equal for check in study.checks):
        raise typer.Exit(EXIT_NOT_EQUAL)
