"""The command ``plan``: greedy beside optimal for one model."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.commands import (
    check_writable,
    finish,
    read_limits,
    read_pins,
    read_problem,
    solve_all,
)
from experiments.options import (
    DEFAULT_LIMIT_S,
    ChunksOption,
    CutAfterOption,
    DeterministicOption,
    DevicesOption,
    JsonOption,
    KeepWholeOption,
    LimitOption,
    LinkOption,
    MaxDevicesOption,
    MemoryOption,
    MicrobatchesOption,
    ModelArgument,
    ObjectiveOption,
    OptimizerOption,
    PinOption,
    ProfileOption,
    ScheduleOption,
    SeedOption,
    SolverOption,
    WorkersOption,
)
from solver import check_solver
from solver.checks import check_choice
from solver.training import SCHEDULES


def plan(
    model: ModelArgument,
    devices: DevicesOption = None,
    link: LinkOption = None,
    objective: ObjectiveOption = None,
    memory_model: MemoryOption = None,
    chunks: ChunksOption = None,
    max_devices: MaxDevicesOption = None,
    keep_whole: KeepWholeOption = None,
    pin: PinOption = None,
    cut_after: CutAfterOption = None,
    profile_file: ProfileOption = None,
    schedule: ScheduleOption = None,
    microbatches: MicrobatchesOption = None,
    optimizer: OptimizerOption = None,
    time_limit: LimitOption = DEFAULT_LIMIT_S,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    deterministic: DeterministicOption = False,
    solver: SolverOption = "auto",
    out: Annotated[str | None, typer.Option("--out", help="File for the plan.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan one model: greedy beside optimal, device by device, with bound and gap."""
    from experiments.progress import ProgressLine

    limits = read_limits(time_limit, workers, seed, deterministic)
    check_solver(solver)
    check_writable(out)
    if schedule is not None:
        check_choice(schedule, SCHEDULES, "--schedule")
    pins = read_pins(pin)
    with ProgressLine(quiet=True) as progress:
        problem = read_problem(
            model,
            devices,
            link,
            objective,
            memory_model,
            progress.step,
            chunks=chunks,
            max_devices=max_devices,
            keep_whole=keep_whole or (),
            pins=pins,
            cut_after=cut_after or (),
            profile_file=profile_file,
            schedule=schedule,
            microbatches=microbatches,
            optimizer=optimizer,
        )
        results = solve_all(problem, dict.fromkeys(("greedy", solver)), limits, model, progress)
    finish(problem, results, limits, out, as_json)
