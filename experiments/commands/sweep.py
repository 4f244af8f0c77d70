"""The command ``sweep``: many planners on many problems, with all results in one file."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.completions import complete_models, complete_planners
from experiments.commands.option_reading import read_planners
from experiments.commands.options import MOST_DEVICES, JsonOption, out_option
from experiments.console.output import check_writable, print_json, say, say_written
from solver import PartitionError
from solver.model.quantities import counted, format_seconds

_FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP.toml",
        help="Models, devices, objectives, memory models, planners, seeds and limits.",
    ),
]
_OutOption = Annotated[
    str, out_option("FILE.sqlite", "Save the results; cells that the file has are not run again.")
]
_JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        max=MOST_DEVICES,
        metavar="COUNT",
        help="Cells at a time; if left out, as many as there are cores for.",
    ),
]
_ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="One more model, which may be an import string or a model.pt2: those run code, "
        "so no file may name them. May be repeated.",
        autocompletion=complete_models,
    ),
]
_PlannerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--planner",
        metavar="NAME",
        help="One more planner, which may be your own, package.module:FUNCTION: that runs code, "
        "so no file may name it. May be repeated.",
        autocompletion=complete_planners,
    ),
]
_RetryOption = Annotated[
    bool, typer.Option("--retry-failed", help="Run failed and ended cells again.")
]


def sweep(
    file: _FileArgument,
    out: _OutOption,
    jobs: _JobsOption = None,
    model: _ModelOption = None,
    planner: _PlannerOption = None,
    retry_failed: _RetryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run planners on models, devices and objectives, and keep every answer.

    For example:

        fxpartition sweep sweep.toml --out results.sqlite
        fxpartition report results.sqlite --out report

    Each answer has a process with limits of time and memory, and is kept at
    once: after an interruption, kill -9 included, the same command goes on.
    """
    from experiments.sweep.settings import read_sweep
    from experiments.sweep.sources import read_model

    check_writable(out, file)
    models = [
        read_model(text, f"--model {text!r}", Path(), may_run_code=True) for text in model or ()
    ]
    settings = read_sweep(Path(file), models, read_planners(planner))

    from experiments.sweep.limited import WorkerPool
    from experiments.sweep.progress import SweepProgress
    from experiments.sweep.running import Sweep
    from experiments.sweep.store import open_store

    if jobs is None:
        # Times of searches that share cores mean little.
        workers = settings.limits.solve_limits(0).worker_count
        jobs = max(1, (os.cpu_count() or 1) // workers)
    with WorkerPool(jobs) as pool, open_store(out) as store, SweepProgress() as progress:
        try:
            found = Sweep(settings, store, pool, progress, retry_failed=retry_failed).run()
        except KeyboardInterrupt:
            say(f"what was done is in {out}; the same command goes on")
            raise
    for case, reason in found.reasons.items():
        say(f"{case}: no problem: {reason}")
    if as_json:
        print_json({"file": out, **asdict(found)})
    else:
        counts = ", ".join(f"{count} {status}" for status, count in found.by_status.items())
        print(
            f"{counted(found.cells, 'cell')} of {counted(found.cases, 'case')}: {counts or 'none'}"
        )
        seconds = format_seconds(found.wall_time_s)
        print(f"{found.done} done in {seconds}, {found.present} done before")
    say_written(out)
    if not found.cells:
        raise PartitionError("no case has a problem; the lines above say why")
