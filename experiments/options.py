"""The options of the command line, one type each: the same are named the same everywhere."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from solver import MEMORY_MODELS, OBJECTIVES, SOLVERS
from solver.training import SCHEDULES

DEFAULT_LIMIT_S: Final = 60.0

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A zoo name (see: fxpartition models), an import string package.module:factory "
        "whose factory returns (module, args) or (module, args, kwargs), a model.pt2 of "
        "torch.export.save, or a saved problem.json.",
    ),
]
DevicesOption = Annotated[
    str | None,
    typer.Option(
        "--devices", help="Such as 4x24GiB, or 80GB,24GB, or 2x80GiB@a100-80gb, or a .toml file."
    ),
]
LinkOption = Annotated[
    str | None,
    typer.Option(
        "--link",
        help="Between any two devices, such as 25GB/s,10us or unlimited; "
        "without it PCIe: 25GB/s,10us.",
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective", help=f"One or more, in order of weight, of {', '.join(OBJECTIVES)}."
    ),
]
MemoryOption = Annotated[
    str | None, typer.Option("--memory-model", help=f"One of {', '.join(MEMORY_MODELS)}.")
]
ChunksOption = Annotated[
    int | None,
    typer.Option("--chunks", min=1, help="Most stages of a device (interleaved pipeline stages)."),
]
MaxDevicesOption = Annotated[
    int | None, typer.Option("--max-devices", min=1, help="Most devices that a plan may use.")
]
PinOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="NAME=DEVICE|STAGE",
        help="Where a module, at any depth, or an operator runs: a device, several with commas "
        "between them, or the number of a stage, from 0. May be repeated.",
    ),
]
CutAfterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cut-after",
        metavar="NAME",
        help="A module, at any depth, or an operator after which a stage ends. May be repeated.",
    ),
]
KeepWholeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-whole",
        metavar="MODULE",
        help="A module that stays on one device, or a pattern such as 'model.layers.*'; several "
        "on one device as 'wte+lm_head'. May be repeated.",
    ),
]
LimitOption = Annotated[float, typer.Option("--time-limit", help="Seconds for each solve.")]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", help="Search threads; one per core, at least 4, if left out."),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Of every random choice.")]
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
        help=f"One of {', '.join(SOLVERS)}; auto picks one that proves, and the answer names it.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help=f"Plan a pipeline that runs by {' or '.join(SCHEDULES)}: values are passed from stage "
        "to stage, and the objective is step if none is given.",
    ),
]
MicrobatchesOption = Annotated[
    int | None,
    typer.Option(
        "--microbatches", min=1, help="In a step of the pipeline; the example inputs are one."
    ),
]
OptimizerOption = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        help="Of training, whose state needs memory: sgd, momentum, adam or adamw, "
        "which it is if left out.",
    ),
]
TrainingOption = Annotated[
    bool, typer.Option("--training", help="Forward and backward passes, not forward alone.")
]
ThreadsOption = Annotated[int, typer.Option("--threads", min=1, help="Of each process.")]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="FILE", help="Measured times, as fxpartition profile wrote them."
    ),
]
CommunicationScaleOption = Annotated[
    float | None,
    typer.Option(
        "--communication-scale",
        help="Factor of a workload's communication costs; 1000 where they are in seconds.",
    ),
]
NoHostOption = Annotated[
    bool, typer.Option("--no-host", help="Leave a workload's CPUs out: accelerators only.")
]
