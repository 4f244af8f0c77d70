"""The command ``fxpartition``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.console.command_line import run_command

if TYPE_CHECKING:
    import typer


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command(_commands, argv)


def _commands() -> typer.Typer:
    from experiments.commands.app import app

    return app
