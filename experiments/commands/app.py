"""The commands of ``fxpartition``, as its help lists them.

torch and OR-Tools load only in the commands that need them.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer
import typer.main

from experiments.commands.compare_command import compare
from experiments.commands.hand_over_command import hand_over
from experiments.commands.list_commands import list_devices, list_models, list_planners
from experiments.commands.plan_command import plan
from experiments.commands.problem_commands import export, generate
from experiments.commands.profile_command import profile
from experiments.commands.report_command import report
from experiments.commands.run_command import run
from experiments.commands.score_command import score
from experiments.commands.solve_command import solve
from experiments.commands.split_command import split
from experiments.commands.sweep_command import sweep
from experiments.exit_codes import EXIT_CODES

NAME: Final = "fxpartition"

_EPILOG: Final = "\n".join(
    ["Exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in EXIT_CODES.items())]
)

app = typer.Typer(
    name=NAME,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"{NAME} {importlib.metadata.version(NAME)}")
        raise typer.Exit


@app.callback(epilog=_EPILOG)
def _describe(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Split a PyTorch model across devices optimally, and prove it.

    A plan says which device runs which operator. Make one for three devices
    of 300 MB, then split the model by it and check that the stages compute
    what the model does:

        fxpartition plan gpt2 --devices 3x300MB --out plan.json
        fxpartition split gpt2 --plan plan.json

    Every command takes --json for programs, and --help.
    """


_PANELS: Final[Mapping[str, Mapping[str, Callable[..., None]]]] = {
    "Plan": {"plan": plan, "solve": solve, "score": score},
    "Use a plan": {"split": split, "hand-over": hand_over, "run": run},
    "Experiments": {
        "compare": compare,
        "sweep": sweep,
        "report": report,
        "profile": profile,
        "export": export,
        "generate": generate,
    },
    "Lists": {"models": list_models, "devices": list_devices, "planners": list_planners},
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        app.command(name=_name, rich_help_panel=_panel)(_command)


@functools.cache
def make_command() -> Callable[..., Any]:
    """Return what reads and runs a command line, made once in a process."""
    return typer.main.get_command(app)
