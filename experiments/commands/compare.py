"""The command ``compare``: several planners on the same problems."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Final, Literal

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
    SEARCH,
    ComparedOptions,
    JsonOption,
    LimitOptions,
    PlannersOption,
    ReportOutOption,
    WithoutOption,
    option,
)
from experiments.commands.stored_options import HostOption
from experiments.console.exit_codes import EXIT_NOT_EQUAL
from solver import PartitionError

_DERIVED: Final = ComparedOptions()
_QUICK: Final = LimitOptions(time_limit=30.0)


@dataclass(frozen=True, slots=True)
class _RunOptions:
    """Extent of the comparison."""

    host: HostOption = None
    quick: Annotated[
        bool, typer.Option("--quick", help="Two small models of the default set, within a minute.")
    ] = False
    check_splits: Annotated[
        Literal["best", "all", "none"],
        option(
            SEARCH,
            None,
            "Which plans the model is split by, to check that the split computes the same: "
            "the best of each case, all that are feasible, or none.",
        ),
    ] = "best"


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

    The report is written after each model. A sweep also keeps every answer at
    once, and goes on after an interruption.
    """
    from experiments.comparison.settings import CompareSettings
    from experiments.comparison.side_by_side import run_comparison
    from experiments.console.progress import ProgressLine
    from experiments.problems.devices import parse_devices
    from experiments.problems.hosts import check_options, parse_host
    from experiments.reports.formats.writing import prepare_folder, write_report
    from experiments.zoo.models import DEFAULT_MODELS, QUICK_MODELS, resolve_model

    if how.quick and models:
        raise PartitionError("--quick has models of its own; leave it out, or the names of models")
    request = read_request(replace(problem, devices=None))
    if how.host is not None:
        parse_host(how.host)
        asked = (request.objective, request.memory_model, request.pipeline)
        check_options(*asked, problem.cut_after, request.engine)
    settings = CompareSettings(
        request=replace(request, host=how.host),
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

    between = None if out is None else partial(write_report, path=out, is_last=False)
    with ProgressLine() as progress:
        study = run_comparison(sources, settings, progress, between=between)
    if all(record.reason for record in study.models):
        raise PartitionError(f"no model could be compared: {study.models[0].reason}")
    finish_study(study, out, as_json)
    if not all(check.equal for check in study.checks):
        raise typer.Exit(EXIT_NOT_EQUAL)
