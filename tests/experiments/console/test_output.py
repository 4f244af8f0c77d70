"""Standard output is for the answer, stderr for the rest, and files are checked before the work."""

import json
import math
import socket

import pytest

from experiments.console.output import check_writable, print_json, say, say_written
from solver import PartitionError


def test_json_is_one_value_without_what_json_has_no_word_for(capsys):
    print_json({"a": (1, math.nan), "b": {"c": [math.inf, -math.inf, 0.5]}, "d": None, "e": "nan"})
    text = capsys.readouterr().out
    assert json.loads(text) == {
        "a": [1, None],
        "b": {"c": [None, None, 0.5]},
        "d": None,
        "e": "nan",
    }
    assert "NaN" not in text and "Infinity" not in text


def test_names_cannot_steer_the_terminal(capsys):
    say_written("\x1b[2Jplan.json")
    say("two\nlines\r")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == ["wrote \\x1b[2Jplan.json", "two\\nlines\\r"]


def test_files_that_can_be_written_are_let_through(tmp_path):
    check_writable(None)
    check_writable("/dev/null")
    path = tmp_path / "plan.json"
    check_writable(str(path))
    assert not path.exists()
    path.write_text("mine")
    (tmp_path / "link.json").symlink_to(path)
    check_writable(str(tmp_path / "link.json"))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "--out is empty; write the name of a file"),
        ("-", "--out writes a file; leave it out, or write --json"),
        ("a\0b", "a null character"),
        (".", ". is a folder; write the name of a file"),
        ("no/such/plan.json", "there is no folder no/such; create it"),
        ("x" * 400, "cannot write x"),
        ("file/plan.json", "there is no folder file"),
        ("socket", "is a socket or a disk; write the name of a file"),
    ],
)
def test_files_that_cannot_be_written_are_refused(tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    with pytest.raises(PartitionError, match="(?s)" + says.replace(".", r"\.", 0)):
        check_writable(name)
