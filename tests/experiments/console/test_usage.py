"""What is said of words that typer does not take."""

import pytest
import typer
import typer.main

from experiments.cli import main
from experiments.console.usage import explain_usage, in_options

app = typer.Typer()


@app.command()
def make(count: int = typer.Option(3, "--count", "-c", min=1), name: str = "n") -> None:
    """Make."""


@app.command()
def take(place: str, loud: bool = typer.Option(False, "--loud")) -> None:
    """Take."""


def told(*words):
    with pytest.raises(Exception) as refused:
        typer.main.get_command(app)(args=list(words), prog_name="it", standalone_mode=False)
    return explain_usage(refused.value, refused.value.format_message(), "it", words)


def test_values_are_shown_as_they_were_written():
    assert told("make", "--count", "0").startswith("--count is '0': ")
    assert told("make", "--count=many").startswith("--count is 'many': ")
    assert told("make", "--count", "2", "--count", "").startswith("--count is '': ")
    assert all(told("make", "--count", value).endswith("; see: it make --help") for value in "0x")


def test_options_of_other_commands_are_named():
    text = "make has no option --loud, which is one of take; see: it make --help"
    assert told("make", "--loud") == text
    assert "--quiet" in told("make", "--quiet") and "one of" not in told("make", "--quiet")


def test_whatever_else_is_wrong_says_where_to_look():
    assert told("take").endswith("; see: it take --help")
    assert "tkae" in told("tkae") and told("tkae").endswith("; see: it --help")
    assert told("make", "odd").endswith("; see: it make --help")
    text = told("make", "--count")
    assert "--count" in text and text.endswith("; see: it make --help")


def test_fields_of_the_library_are_options_of_the_command_line():
    told = "'h' is divided; plan with Placement(keep_whole=['h.0', 'h.1'])"
    assert in_options(told) == "'h' is divided; plan with --keep-whole 'h.0' --keep-whole 'h.1'"
    assert in_options("pin 'h': there is no device") == "pin 'h': there is no device"
    told = "fix it by capture(..., constants=['grid', 'sizes']); otherwise pass arguments"
    assert (
        in_options(told)
        == "fix it by --constant 'grid' --constant 'sizes'; otherwise pass arguments"
    )
    told = "check=True runs it; capture it as for the plan (constants, check)"
    assert in_options(told) == "--check runs it; capture it as for the plan (--constant, --check)"
    told = "which may not be whole layers; plan with solver='chain'"
    assert in_options(told) == "which may not be whole layers; plan with --solver chain"


def test_what_the_library_advises_is_said_in_options(tmp_path, capsys):
    devices = tmp_path / "devices.toml"
    devices.write_text(
        '[[devices]]\nmemory = "1GB"\ncount = 2\n[interconnect]\ncharging = "host_staged"\n'
    )
    file, graph = str(devices), str(tmp_path / "graph.json")
    assert main(["generate", "layered", "--operators", "9", "--devices", "2", "--out", graph]) == 0
    for words, advice in (
        (["--devices", file, "--schedule", "1f1b"], "leave --schedule out"),
        (["--pin", "8.layer0=9"], "give more devices or --chunks"),
    ):
        assert main(["solve", graph, *words]) == 2
        assert capsys.readouterr().err.endswith(f"{advice}\n")
