"""The commands ``export`` and ``generate``, which write problems for ``solve``."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.commands.completions import complete_from
from experiments.commands.option_groups import with_option_groups
from experiments.commands.option_reading import read_request
from experiments.commands.options import (
    JsonOption,
    ModelArgument,
    ProblemOptions,
    SeedOption,
    out_option,
)
from experiments.console.output import check_writable, print_json, say_note
from experiments.problems.request import read_problem
from solver import PartitionError, PartitionProblem, save_problem
from solver.model.quantities import counted
from solver.model.text import printable

KINDS = (
    "layered",
    "series-parallel",
    "nasnet",
    "transformer",
    "mixture-of-experts",
    "balanced-experts",
)
_OutOption = Annotated[str, out_option("FILE", "Save the problem, for solve.")]
_NUMBERS = tuple(
    f"{name} is " for name in ("operators", "width", "experts", "seed", "devices", "slack")
)
"""Beginnings of messages about fields that are options here."""
_SHAPED = {"width": ("layered",), "experts": ("mixture-of-experts", "balanced-experts")}


@with_option_groups
def export(
    model: ModelArgument, out: _OutOption, problem: ProblemOptions, as_json: JsonOption = False
) -> None:
    """Save a model's operator graph with its devices as a problem that solve reads.

    For example:

        fxpartition export gpt2 --devices 3x300MB --out problem.json

    The file holds the settings of all options; solve can change most of them.
    """
    from experiments.console.progress import ProgressLine

    check_writable(out, model, problem.profile, *problem.devices or ())
    request = read_request(problem)
    with ProgressLine(quiet=True) as progress:
        captured, made = read_problem(model, request, progress.step)
    say_note(captured)
    _save(made, out, as_json)


def generate(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help=f"One of {', '.join(KINDS)}.", autocompletion=complete_from(KINDS)
        ),
    ],
    out: _OutOption,
    operators: Annotated[
        int,
        typer.Option(
            "--operators", metavar="COUNT", help="How many; whole blocks of a kind that has them."
        ),
    ] = 1000,
    width: Annotated[
        int | None,
        typer.Option("--width", metavar="COUNT", help="Operators in a layer (layered); 20."),
    ] = None,
    experts: Annotated[
        int | None, typer.Option("--experts", metavar="COUNT", help="In a layer (experts); 256.")
    ] = None,
    devices: Annotated[
        int, typer.Option("--devices", metavar="COUNT", help="How many devices.")
    ] = 8,
    unequal: Annotated[
        bool, typer.Option("--unequal", help="Devices of unequal memory, speeds and links.")
    ] = False,
    slack: Annotated[
        float,
        typer.Option(
            "--slack",
            metavar="PERCENT",
            help="Memory of all devices beyond what one would need; of few operators there may be "
            "no plan.",
        ),
    ] = 15.0,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Make a random problem that solve reads; the same seed gives the same file everywhere.

    For example:

        fxpartition generate layered --operators 1000 --seed 1 --out graph.json
        fxpartition solve graph.json --time-limit 30

    Kinds that repeat a block have as many whole ones as come nearest. Nothing
    is solved here: where operators are few or large for their devices, none may
    fit, and solve says by how much.
    """
    from experiments.problems.generators import GeneratorSettings, generate_problem

    check_writable(out)
    given = {"width": width, "experts": experts}
    shape = {name: value for name, value in given.items() if value is not None}
    for name in shape:
        if kind in KINDS and kind not in _SHAPED[name]:
            shaped = " and ".join(_SHAPED[name])
            raise PartitionError(f"--{name} is about {shaped} graphs; leave it out")
    try:
        settings = GeneratorSettings(operators, seed=seed, **shape)
        made = generate_problem(kind, settings, devices, slack_percent=slack, unequal=unequal)
    except PartitionError as error:
        dashes = "--" * str(error).startswith(_NUMBERS)
        raise PartitionError(f"{dashes}{error}") from None
    _save(made, out, as_json)


def _save(problem: PartitionProblem, out: str, as_json: bool) -> None:
    save_problem(problem, out)
    if as_json:
        print_json(
            {
                "file": out,
                "operators": len(problem.operators),
                "devices": [device.name for device in problem.devices],
                "objective": list(problem.objective),
                "memory_model": problem.memory_model,
            }
        )
        return
    operators = counted(len(problem.operators), "operator")
    print(printable(f"wrote {out}: {operators}, {counted(len(problem.devices), 'device')}"))
