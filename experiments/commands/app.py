"""The commands of ``fxpartition``, in the order of its help.

Only the commands that need torch and OR-Tools import them.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import typer

from experiments.commands.calibrate import calibrate
from experiments.commands.compare import compare
from experiments.commands.hand_over import hand_over
from experiments.commands.lists import list_devices, list_models, list_planners
from experiments.commands.plan import plan, solve
from experiments.commands.problem_files import export, generate
from experiments.commands.profile import profile
from experiments.commands.report import report
from experiments.commands.run import run
from experiments.commands.score import score
from experiments.commands.serve import serve
from experiments.commands.split import split
from experiments.commands.sweep import sweep
from experiments.console.exit_codes import EXIT_CODES

_NAME: Final = "fxpartition"

_EPILOG: Final = "\n".join(
    ["Exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in EXIT_CODES.items())]
)

app = typer.Typer(
    name=_NAME,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"{_NAME} {importlib.metadata.version(_NAME)}")
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
    the same as the model:

        fxpartition plan gpt2 --devices 3x300MB --out plan.json
        fxpartition split gpt2 --plan plan.json

    Every command takes --json for programs, and --help.
    """


_PANELS: Final[Mapping[str, Mapping[str, Callable[..., None]]]] = {
    "Plan": {"plan": plan, "serve": serve, "solve": solve, "score": score},
    "Use a plan": {"split": split, "hand-over": hand_over, "run": run},
    "Experiments": {
        "compare": compare,
        "sweep": sweep,
        "report": report,
        "profile": profile,
        "calibrate": calibrate,
        "export": export,
        "generate": generate,
    },
    "Lists": {"models": list_models, "devices": list_devices, "planners": list_planners},
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        app.command(name=_name, rich_help_panel=_panel)(_command)
