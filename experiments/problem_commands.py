"""The commands ``export`` and ``generate``, which write problems for ``solve``."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.commands import (
    check_writable,
    read_problem,
)
from experiments.options import (
    DevicesOption,
    LinkOption,
    MemoryOption,
    ModelArgument,
    ObjectiveOption,
    SeedOption,
)
from solver import save_problem
from solver.quantities import printable


def export(
    model: ModelArgument,
    out: Annotated[str, typer.Option("--out", help="File for the problem.")],
    devices: DevicesOption = None,
    link: LinkOption = None,
    objective: ObjectiveOption = None,
    memory_model: MemoryOption = None,
) -> None:
    """Save a model's operator graph with its devices as a problem that solve reads."""
    from experiments.progress import ProgressLine

    check_writable(out)
    with ProgressLine(quiet=True) as progress:
        problem = read_problem(model, devices, link, objective, memory_model, progress.step)
    save_problem(problem, out)
    counts = f"{len(problem.operators)} operators, {len(problem.devices)} devices"
    print(printable(f"wrote {out}: {counts}"))


def generate(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="layered, series-parallel, nasnet, transformer or mixture-of-experts.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="File for the problem.")],
    operators: Annotated[
        int, typer.Option("--operators", help="How many; whole blocks of a kind that has them.")
    ] = 1000,
    width: Annotated[int, typer.Option("--width", help="Operators in a layer (layered).")] = 20,
    experts: Annotated[
        int, typer.Option("--experts", help="Experts in a layer (mixture-of-experts).")
    ] = 256,
    devices: Annotated[int, typer.Option("--devices", help="How many.")] = 8,
    unequal: Annotated[
        bool, typer.Option("--unequal", help="Devices of unequal memory, speeds and links.")
    ] = False,
    slack: Annotated[
        float,
        typer.Option("--slack", help="Memory beyond what one device would need, in per cent."),
    ] = 15.0,
    seed: SeedOption = 0,
) -> None:
    """Make a random problem that solve reads; the same seed gives the same file everywhere.

    For example: fxpartition generate layered --operators 1000 --width 20 --seed 1 -o g.json
    """
    from experiments.generators import GeneratorSettings, generate_problem

    check_writable(out)
    settings = GeneratorSettings(operators, width, experts, seed)
    problem = generate_problem(kind, settings, devices, slack_percent=slack, unequal=unequal)
    save_problem(problem, out)
    counts = f"{len(problem.operators)} operators, {len(problem.devices)} devices"
    print(printable(f"wrote {out}: {counts}"))
