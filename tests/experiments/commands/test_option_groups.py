"""Groups of options: what a command takes, and what it gets."""

import dataclasses
from typing import Annotated

import typer
from typer.testing import CliRunner

from experiments.commands.option_groups import with_option_groups

Named = Annotated[str | None, typer.Option("--name", help="Whose.", rich_help_panel="Things")]
Counted = Annotated[int, typer.Option("--count", min=1, rich_help_panel="Things")]


@dataclasses.dataclass(frozen=True, slots=True)
class Things:
    name: Named = None
    count: Counted = 3


@dataclasses.dataclass(frozen=True, slots=True)
class MoreThings(Things):
    words: Annotated[list[str] | None, typer.Option("--word")] = None


def invoke(command, *words):
    app = typer.Typer(rich_markup_mode="rich")
    app.command()(command)
    return CliRunner().invoke(app, words)


def test_fields_are_options_and_make_a_group():
    got = []

    @with_option_groups
    def command(place: Annotated[str, typer.Argument()], things: Things, *, loud: bool = False):
        """Do it."""
        got.append((place, things, loud))

    assert invoke(command, "here").exit_code == 0
    assert invoke(command, "here", "--name", "you", "--count", "5", "--loud").exit_code == 0
    assert got == [("here", Things(), False), ("here", Things("you", 5), True)]
    assert invoke(command, "here", "--count", "0").exit_code == 2
    assert command.__name__ == "command" and command.__doc__ == "Do it."
    text = invoke(command, "--help").output
    assert text.index("─ Options") < text.index("─ Things") < text.index("--name")


def test_the_default_of_a_parameter_has_the_defaults_of_its_options():
    got = []

    @with_option_groups
    def command(things: MoreThings = MoreThings(count=7)):
        got.append(things)

    assert invoke(command).exit_code == 0
    assert invoke(command, "--word", "a", "--word", "b").exit_code == 0
    assert got == [MoreThings(count=7), MoreThings(count=7, words=["a", "b"])]
