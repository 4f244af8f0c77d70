"""All commands: what their help says, and how they refuse nonsense."""

import inspect
import itertools
import re
import shlex
import subprocess
import sys

import pytest
import typer.main
from rich.text import Text
from typer.testing import CliRunner

from experiments.cli import main
from experiments.commands.app import app
from experiments.console.exit_codes import EXIT_BAD_INPUT
from tests.support.paths import ROOT

GROUP = typer.main.get_command(app)
NUMBERS = ("COUNT", "NUMBER", "SECONDS", "FACTOR", "PERCENT")


def options_of(name):
    """The options of a command by their long name."""
    return {
        max(parameter.opts, key=len): parameter
        for parameter in GROUP.commands[name].params
        if parameter.param_type_name == "option" and parameter.name != "help"
    }


def help_of(*words):
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "100"}, prog_name="it")
    assert done.exit_code == 0
    return done.output


# -- help ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUP.commands)
def test_help_of_a_command_loses_nothing_to_markup(name):
    """Whatever stands in brackets would be taken for a style, and vanish."""
    command = GROUP.commands[name]
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", help_of(name)).split())
    for text in (inspect.cleandoc(command.help), *(p.help for p in command.params if p.help)):
        assert Text.from_markup(text).plain == text
    for paragraph in inspect.cleandoc(command.help).split("\n\n"):
        assert " ".join(paragraph.split()) in shown
    assert all(option in shown for option in options_of(name))


def examples():
    found = []
    for name, command in (("", GROUP), *GROUP.commands.items()):
        text = re.sub(r"\n {8,}", " ", inspect.cleandoc(command.help))
        for line in re.findall(r"(?m)^ {4}(fxpartition .*)$", text):
            found.append(pytest.param(name, shlex.split(line)[1:], id=line))
    return found


@pytest.mark.parametrize(("name", "words"), examples())
def test_examples_of_help_can_be_parsed(name, words):
    with GROUP.commands[words[0]].make_context(words[0], words[1:]) as context:
        assert context.args == []


def test_options_of_one_name_are_the_same_everywhere():
    """The same metavar and text, but for those whose default differs or that are others."""
    apart = {"--out", "--solver", "--devices"}
    # A sweep adds to the planners of its file.
    apart |= {"--planner"}
    # What serves best has names of its own, and room is left for values instead of counting them.
    apart |= {"--objective", "--memory-model"}
    # Of a model, its capture; of a file, the program that will run it.
    apart |= {"--check"}
    seen = {}
    for name in GROUP.commands:
        for option, parameter in options_of(name).items():
            what = (parameter.metavar, parameter.help, tuple(parameter.opts))
            if option not in apart:
                assert seen.setdefault(option, (name, what))[1] == what, (name, option)
            if option == "--out":
                assert "-o" in parameter.opts, name
    with_problem = {name for name in GROUP.commands if "--cut-after" in options_of(name)}
    assert with_problem == {"plan", "solve", "score", "run", "compare", "export"}
    assert all("--json" in options_of(name) for name in GROUP.commands)


# -- nonsense --------------------------------------------------------------------------------

# Each is right but for what is added to it, and refused before anything is built.
WORDS = {
    "plan": ["problem.json"],
    "serve": ["tests.support.serving_models:small", "--devices", "1GB"],
    "solve": ["problem.json"],
    "score": ["plan.json", "problem.json"],
    "split": ["mlp", "--plan", "plan.json"],
    "hand-over": ["plan.json", "mlp", "--to", "accelerate", "--out", "map.json"],
    "run": ["mlp"],
    "compare": ["problem.json"],
    "sweep": ["sweep.toml", "--out", "results.sqlite"],
    "report": ["results.json"],
    "profile": ["mlp"],
    "calibrate": ["cpu"],
    "export": ["problem.json", "--out", "new.json"],
    "generate": ["layered", "--out", "new.json"],
    "models": [],
    "devices": [],
    "planners": [],
}
HUGE = "9" * 40


def nonsense():
    for name in GROUP.commands:
        for option, parameter in options_of(name).items():
            # Groups are read by the same lines everywhere, but by run and compare.
            repeated = name in ("plan", "score", "export") and option in options_of("solve")
            if parameter.is_flag or (repeated and option != "--out"):
                continue
            if parameter.metavar in NUMBERS:
                values = ["", "-1", "nan", "many", "\0"]
                values += [] if option in ("--time-limit", "--communication-scale") else [HUGE]
            elif option in ("--out", "--plan", "--profile"):
                values = ["", "\0", "x" * 3000]
                # Folders are made with those above them.
                values += ["no/such/folder/file"] if parameter.metavar == "FILE" else []
            else:
                values = ["", "\0", "\x1b[31m", "x" * 3000]
            yield from ((name, option, value) for value in values)


def refused(words, capsys):
    """What a command says that refuses its words before it does anything."""
    code = main(words)
    printed = capsys.readouterr()
    assert code == EXIT_BAD_INPUT, (words, printed)
    assert printed.out == ""
    # A comparison goes on with the next model, so it tells of each, and then that none is left.
    lines = printed.err.splitlines()[-1:] if words[0] == "compare" else printed.err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ") and lines[0].isprintable()
    assert len(lines[0]) < 2100
    return lines[0]


# Options have three to six values, so that a step of five meets all kinds of them.
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.deep)])
def test_nonsense_in_any_option_is_one_line(inside, capsys, step):
    (inside / "new.json").unlink(missing_ok=True)
    tried = 0
    for name, option, value in itertools.islice(nonsense(), 0, None, step):
        # What a model's modules are called is known when it is built; a sweep reads its file first.
        late = {"run": ("--keep-whole", "--cut-after"), "sweep": ("--model",)}
        # A profile starts processes before.
        late |= {"profile": ("--constant",)} if step > 1 else {}
        if option in late.get(name, ()) or (name == "generate" and option == "--experts"):
            continue
        words = [name, *WORDS[name]]
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
        line = refused(words, capsys)
        shown = repr(value)[1:-1] if value else "''"
        named = option.removeprefix("--").removesuffix("s").replace("-", "[- _]")
        assert re.search(named, line) or shown[:14] in line, line
        tried += 1
    assert tried > 200 // step
    assert not (inside / "new.json").exists()


@pytest.mark.parametrize("name", GROUP.commands)
def test_unknown_words_are_one_line(inside, capsys, name):
    words = [name, *WORDS[name]]
    path = f"fxpartition {name} --help"
    line = refused([*words, "--no-such-option"], capsys)
    assert "--no-such-option" in line and path in line
    if not any(p.nargs == -1 for p in GROUP.commands[name].params):
        assert f"(odd); see: {path}" in refused([*words, "odd"], capsys)
    for parameter in GROUP.commands[name].params:
        if parameter.required:
            assert f"see: {path}" in refused([name], capsys)


@pytest.mark.parametrize("name", [name for name in WORDS if WORDS[name]])
@pytest.mark.parametrize("file", ["", "missing.json", ".", "a\0b.json", "x" * 3000 + ".json"])
def test_what_is_no_file_is_one_line(inside, capsys, name, file):
    words = [name, file, *WORDS[name][1:]]
    refused(words, capsys)


def test_the_version_is_printed(capsys):
    import importlib.metadata

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fxpartition {importlib.metadata.version('fxpartition')}\n"


# -- where output goes -----------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")
def test_a_reader_that_stops_reading_ends_a_command_quietly():
    # A table that the pipe takes whole is nobody's loss.
    for words, codes in (("--help | true", ("141",)), ("models | head -1", ("0", "141"))):
        command = f"'{sys.executable}' -m fxpartition {words}; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
        assert done.stderr == "" and done.stdout.splitlines()[-1] in codes
