"""The command ``solve``: a saved problem or published workload, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import (
    check_writable,
    finish,
    read_limits,
    read_saved_problem,
    solve_all,
    with_stage_limits,
)
from experiments.options import (
    DEFAULT_LIMIT_S,
    ChunksOption,
    CommunicationScaleOption,
    DeterministicOption,
    DevicesOption,
    JsonOption,
    LimitOption,
    LinkOption,
    MaxDevicesOption,
    MemoryOption,
    NoHostOption,
    ObjectiveOption,
    SeedOption,
    SolverOption,
    WorkersOption,
)
from solver import check_solver


def solve(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="FILE.json",
            help="A saved problem, or a workload in the format of msr-fiddle/dnn-partitioning.",
        ),
    ],
    devices: DevicesOption = None,
    link: LinkOption = None,
    objective: ObjectiveOption = None,
    memory_model: MemoryOption = None,
    communication_scale: CommunicationScaleOption = None,
    no_host: NoHostOption = False,
    chunks: ChunksOption = None,
    max_devices: MaxDevicesOption = None,
    time_limit: LimitOption = DEFAULT_LIMIT_S,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    deterministic: DeterministicOption = False,
    solver: SolverOption = "auto",
    out: Annotated[str | None, typer.Option("--out", help="File for the plan.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Solve a saved problem or a published workload; torch is not needed."""
    from experiments.progress import ProgressLine

    limits = read_limits(time_limit, workers, seed, deterministic)
    check_solver(solver)
    check_writable(out)
    problem = read_saved_problem(
        Path(graph),
        devices,
        link,
        objective,
        memory_model,
        communication_scale,
        with_host=not no_host,
    )
    problem = with_stage_limits(problem, chunks, max_devices)
    with ProgressLine(quiet=True) as progress:
        results = solve_all(problem, (solver,), limits, graph, progress)
    finish(problem, results, limits, out, as_json)
