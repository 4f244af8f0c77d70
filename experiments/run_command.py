"""The command ``run``: plans as pipelines of processes, predicted and measured side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands import make_console, read_limits
from experiments.options import (
    DevicesOption,
    JsonOption,
    ModelArgument,
    ProfileOption,
    ThreadsOption,
    TrainingOption,
)
from solver import PartitionError
from solver.checks import check_choice
from solver.quantities import printable
from solver.training import SCHEDULES

if TYPE_CHECKING:
    from experiments.prediction import PlanRow


def run(
    model: ModelArgument,
    devices: DevicesOption = None,
    microbatches: Annotated[
        int, typer.Option("--microbatches", min=1, help="The example inputs, so many times a step.")
    ] = 4,
    schedule: Annotated[
        str, typer.Option("--schedule", help=f"One of {', '.join(SCHEDULES)}.")
    ] = "1f1b",
    training: TrainingOption = False,
    plans: Annotated[
        str, typer.Option("--plans", help="Solvers whose plans run, with commas between them.")
    ] = "greedy,chain,auto",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps that are timed.")] = 9,
    threads: ThreadsOption = 1,
    profile_file: ProfileOption = None,
    solve_limit: Annotated[
        float, typer.Option("--solve-limit", help="Seconds for each solver.")
    ] = 30.0,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1, help="Seconds for the processes.")
    ] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Run plans as pipelines, one process a device; compare times and memory with predictions.

    Without --devices there are two, with three fifths and two fifths of the memory.
    """
    from experiments.devices import parse_devices
    from experiments.pipeline_group import PipelineGroup
    from experiments.plan_runs import RunSettings, captured_model, run_plans
    from experiments.profiling import Profile, ProfileSettings, measure_profile
    from experiments.progress import ProgressLine
    from experiments.run_tables import plan_table, row_json

    check_choice(schedule, SCHEDULES, "--schedule")
    given = None if devices is None else parse_devices(devices).devices
    settings = RunSettings(
        devices=given,
        training=training,
        schedule="gpipe" if schedule == "gpipe" else "1f1b",
        microbatches=microbatches,
        steps=steps,
        solvers=tuple(dict.fromkeys(name.strip() for name in plans.split(","))),
        limits=read_limits(solve_limit, None, 0, False),
    )
    profile = None if profile_file is None else Profile.load(profile_file)
    if profile is not None and profile.threads != threads:
        raise PartitionError(
            f"{profile_file} was measured with {profile.threads} threads; run with --threads "
            f"{profile.threads}, or measure again"
        )
    count = len(settings.shares if given is None else given)
    rows: list[PlanRow]
    with ProgressLine() as progress:
        progress.step(f"{model}: capturing")
        captured = captured_model(model)
        if profile is not None:
            profile.check(captured)
        progress.step(f"{model}: starting {count} processes")
        with PipelineGroup(count, threads=threads, time_limit_s=time_limit) as group:
            if profile is None:
                progress.step(f"{model}: measuring")
                profile = measure_profile(model, ProfileSettings(training, 5, group.count), group)
            rows = run_plans(
                model, captured, profile, settings, group, progress.step, progress.done
            )
    if as_json:
        print(json.dumps([row_json(row) for row in rows], indent=1))
        return
    console = make_console()
    console.print(plan_table(rows))
    for row in rows:
        if row.same_as is not None:
            console.print(printable(f"{row.name} has the plan of {row.same_as}"), markup=False)
