"""The commands ``plan``, greedy beside optimal for one model, and ``solve``, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.answers import finish, solve_all
from experiments.commands.completions import complete_published
from experiments.commands.option_groups import with_option_groups
from experiments.commands.option_reading import check_given, read_limits, read_request, read_without
from experiments.commands.options import (
    JsonOption,
    ModelArgument,
    ProblemOptions,
    SearchOptions,
    StepsOption,
    WithoutOption,
)
from experiments.commands.plan_outputs import PlanOutputOptions, PlanOutputs
from experiments.console.output import say_note
from experiments.problems.request import read_problem, read_saved_problem


@with_option_groups
def plan(
    model: ModelArgument,
    problem: ProblemOptions,
    search: SearchOptions,
    outputs: PlanOutputOptions,
    without: WithoutOption = None,
    steps: StepsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Plan one model: greedy beside optimal, device by device, with bound and gap.

    For example, GPT-2 on three devices, and as a pipeline that divides no layer:

        fxpartition plan gpt2 --devices 3x300MB --out plan.json --out plan.html
        fxpartition plan gpt2 --devices 3x300MB --schedule 1f1b --microbatches 8
            --keep-whole 'transformer.h.*'

    If no plan exists, it names the limits that clash, and a remedy.
    """
    from experiments.console.progress import ProgressLine

    limits = read_limits(search)
    left_out = read_without(without)
    forms = outputs.checked(model, problem.profile, *problem.devices or ())
    request = read_request(problem)
    with ProgressLine(quiet=True) as progress:
        captured, asked = read_problem(model, request, progress.step)
        say_note(captured)
        solvers = list(dict.fromkeys(("greedy", search.solver)))
        results = solve_all(asked, solvers, limits, model, progress, left_out)
    finish(asked, results, limits, PlanOutputs(forms, model, captured), as_json, steps)


@with_option_groups
def solve(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="FILE.json",
            help="A saved problem, a workload in the format of msr-fiddle/dnn-partitioning or of "
            "msr-fiddle/piper, or published:NAME, one that comes with the package.",
            autocompletion=complete_published,
        ),
    ],
    problem: ProblemOptions,
    search: SearchOptions,
    outputs: PlanOutputOptions,
    without: WithoutOption = None,
    steps: StepsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Solve a saved problem or a published workload; torch is not needed.

    For example:

        fxpartition export gpt2 --devices 3x300MB --out problem.json
        fxpartition solve problem.json --objective latency --json

    If no plan exists, it names the limits that clash, and a remedy.
    """
    from experiments.console.progress import ProgressLine

    check_given(graph, "FILE.json", "problem.json")
    limits = read_limits(search)
    left_out = read_without(without)
    forms = outputs.checked(graph, problem.profile)
    asked = read_saved_problem(Path(graph), read_request(problem))
    with ProgressLine(quiet=True) as progress:
        results = solve_all(asked, (search.solver,), limits, graph, progress, left_out)
    finish(asked, results, limits, PlanOutputs(forms, graph), as_json, steps)
