"""Groups of options: what a command takes, and what it gets."""

import dataclasses
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from experiments.commands.option_groups import with_option_groups

Named = Annotated[str | None, typer.Option("--name", help="Whose.")]
Counted = Annotated[int, typer.Option("--count", min=1)]


@dataclasses.dataclass(frozen=True, slots=True)
class Things:
    PANEL: ClassVar[str] = "Things"
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


def test_help_lists_options_under_the_heading_of_their_group():
    @with_option_groups
    def command(things: MoreThings, other: Annotated[int, typer.Option("--other")] = 0):
        """Do it."""

    lines = invoke(command, "--help").output.splitlines()
    headings = [line.split()[1] for line in lines if line.startswith("╭")]
    assert headings == ["Options", "Things"]
    listed = {line.split()[1]: index for index, line in enumerate(lines) if " --" in line}
    things = next(index for index, line in enumerate(lines) if "─ Things" in line)
    assert all(listed[name] > things for name in ("--name", "--count", "--word"))
    assert listed["--other"] < things


def test_the_default_of_a_parameter_has_the_defaults_of_its_options():
    got = []

    @with_option_groups
    def command(things: MoreThings = MoreThings(count=7)):
        got.append(things)

    assert invoke(command).exit_code == 0
    assert invoke(command, "--word", "a", "--word", "b").exit_code == 0
    assert got == [MoreThings(count=7), MoreThings(count=7, words=["a", "b"])]
    command(count=9)
    assert got[-1] == MoreThings(count=9)


def test_an_option_is_taken_once():
    def command(things: Things, more: MoreThings):
        pass

    with pytest.raises(TypeError, match="command has an option twice"):
        with_option_groups(command)


def test_options_keep_the_panel_that_they_name():
    @dataclasses.dataclass(frozen=True)
    class Placed:
        PANEL: ClassVar[str] = "Here"
        one: Annotated[int, typer.Option("--one", rich_help_panel="There")] = 1

    shared = typer.Option("--two")

    def described(panel):
        made = dataclasses.make_dataclass(
            "Made", [("two", Annotated[int, shared], 2)], namespace={"PANEL": panel}, frozen=True
        )
        assert made().two == 2
        return made

    @with_option_groups
    def command(first: Placed):
        pass

    assert "─ There" in invoke(command, "--help").output

    def other(group):
        pass

    panels = []
    for name in ("A", "B"):
        other.__annotations__["group"] = described(name)
        (parameter,) = with_option_groups(other).__signature__.parameters.values()
        panels.append(parameter.annotation.__metadata__[0].rich_help_panel)
    assert panels == ["A", "B"] and shared.rich_help_panel is None


@dataclasses.dataclass(frozen=True)
class Inner:
    PANEL: ClassVar[str] = "Inner"
    depth: Annotated[int, typer.Option("--depth")] = 1


@dataclasses.dataclass(frozen=True)
class Outer:
    PANEL: ClassVar[str] = "Outer"
    name: Named = None
    inner: Inner = Inner()


def test_groups_in_a_group_are_made_and_have_headings_of_their_own():
    got = []

    @with_option_groups
    def command(outer: Outer = Outer(inner=Inner(depth=4))):
        """Do it."""
        got.append(outer)

    assert invoke(command).exit_code == 0
    assert invoke(command, "--depth", "7", "--name", "you").exit_code == 0
    assert got == [Outer(inner=Inner(4)), Outer("you", Inner(7))]
    lines = invoke(command, "--help").output.splitlines()
    places = {line.split()[1]: i for i, line in enumerate(lines) if "╭" in line or " --" in line}
    assert places["Outer"] < places["--name"] < places["Inner"] < places["--depth"]
