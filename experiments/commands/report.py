"""The command ``report``: the report of existing results."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.commands.answers import finish_study
from experiments.commands.option_reading import check_given
from experiments.commands.options import JsonOption, ReportOutOption
from solver import PartitionError


def report(
    results: Annotated[
        str,
        typer.Argument(
            metavar="RESULTS", help="The .sqlite file of a sweep, or the results.json of a report."
        ),
    ],
    out: ReportOutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Report the results of a sweep or a comparison.

    For example:

        fxpartition report results.sqlite --out report

    The folder then holds report.html, which needs nothing else, the same as
    report.md, all numbers as results.json, the problems and plans, and pages
    of the best ones.
    """
    from experiments.reports.formats.study_json import read_study
    from experiments.reports.formats.writing import prepare_folder
    from experiments.sweep.store import load_study

    check_given(results, "RESULTS", "results.sqlite")
    if out is not None:
        prepare_folder(out)
    is_json = results.lower().endswith(".json")
    study = read_study(results) if is_json else load_study(results)
    if not study.cases and not study.models:
        raise PartitionError(f"{results} holds no answers; give results that do")
    finish_study(study, out, as_json)
