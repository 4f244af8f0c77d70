"""What docs/terminal.md says is what the commands take, print and end with."""

import json
import re
from dataclasses import fields

import pytest
import typer.main

from experiments.cli import main
from experiments.commands.app import app
from experiments.commands.options import LimitOptions, ProblemOptions
from experiments.console.exit_codes import EXIT_CODES
from tests.support.documents import TERMINAL_PAGE as PAGE
from tests.support.documents import told_keys

GROUP = typer.main.get_command(app)


def rows_below(heading, column=0):
    """Code words in a column of the table rows below a heading."""
    section = PAGE.partition(f"\n{heading}\n")[2]
    assert section, heading
    section = re.split(r"(?m)^#{2,} ", section)[0]
    for line in re.findall(r"(?m)^\| (?!---).*$", section):
        cells = line.strip("| ").split(" | ")
        yield re.findall(r"`([^`]+)`", cells[column]) if column < len(cells) else [], cells


def test_the_page_names_every_command_and_option():
    groups = {
        "(#problem-options)": {words[0] for words, _ in rows_below("## Problem options") if words},
        "(#search-options)": {words[0] for words, _ in rows_below("## Search options") if words},
    }
    named = {
        f"--{field.name.rstrip('_').replace('_', '-')}"
        for group in (ProblemOptions, LimitOptions)
        for field in fields(group)
    }
    assert set().union(*groups.values()) == named
    told = {}
    for words, cells in rows_below("## Commands"):
        if words:
            options = set(re.findall(r"`(--[\w-]+)`", cells[2]))
            for anchor, members in groups.items():
                options |= members if anchor in cells[2] else set()
            told[words[0].split()[0]] = options
            arguments = [
                f"[{each.metavar}]..." if each.nargs == -1 else each.metavar
                for each in GROUP.commands[words[0].split()[0]].params
                if each.param_type_name == "argument"
            ]
            assert words[0].split()[1:] == arguments
    assert told == {
        name: {
            max(parameter.opts, key=len)
            for parameter in command.params
            if parameter.param_type_name == "option" and parameter.name != "help"
        }
        for name, command in GROUP.commands.items()
    }


def test_the_page_has_the_exit_codes():
    told = {
        int(cells[0]): cells[1] for _, cells in rows_below("## Exit codes") if cells[0].isdecimal()
    }
    assert told == dict(EXIT_CODES)


NOT_OF_MAPS = {"programs", "arguments", "settings", "devices"}


@pytest.mark.parametrize(
    ("heading", "words", "absent"),
    [
        ("### `plan`, `solve`", "plan problem.json", {"diagnosis"}),
        ("### `plan`, `solve`", "plan problem.json --devices 2x9KB --time-limit 5", set()),
        ("### `plan`, `solve`", "solve problem.json", {"diagnosis", "baseline"}),
        ("### `score`", "score plan.json problem.json", set()),
        ("### `split`", "split mlp --plan plan.json", set()),
        ("### `hand-over`", "hand-over plan.json mlp --to accelerate -o map.json", NOT_OF_MAPS),
        ("### `compare`, `report`", "compare problem.json --planner greedy", set()),
        ("### `export`, `generate`", "export problem.json --max-devices 1 -o new.json", set()),
        ("### `export`, `generate`", "generate layered --operators 9 -o new.json", set()),
    ],
)
def test_the_page_has_the_keys_of_every_answer(inside, capsys, heading, words, absent):
    main([*words.split(), "--json"])
    assert set(json.loads(capsys.readouterr().out)) == told_keys(heading) - absent


@pytest.mark.parametrize(("index", "name"), list(enumerate(("models", "devices", "planners"))))
def test_the_page_has_the_keys_of_every_list(capsys, index, name):
    assert main([name, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    told = told_keys("### `models`, `devices`, `planners`", index) - {name}
    assert answer and all(set(entry) == told for entry in answer)
