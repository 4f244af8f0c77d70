"""What messages show of texts that others wrote."""

import pickle

import pytest

from solver import Device, PartitionError
from solver.io.files import read_json
from solver.model.text import one_line, shown

LONG = "x" * 5000
QUOTED = 'it\'s "quoted" ' * 500


class _Mute:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "message",
    [
        f"there is no file {LONG}; write another",
        f"model {LONG!r} is unknown",
        f"model {'many words ' * 500!r} is unknown",
        f"""model {"it's " * 500!r} is unknown""",
        f"model {QUOTED!r} is unknown",
        f"names {LONG!r} and {LONG!r} differ; write one",
    ],
)
def test_at_most_a_hundred_characters_of_a_text_are_shown(message):
    line = one_line(message)
    assert len(line) <= 250
    assert one_line(line) == line
    assert "..." in line
    assert line.startswith(message[:8])


def test_short_texts_are_shown_whole():
    names = ", ".join(repr("n" * 90) for _ in range(15))
    for message in ("a b's c", f"the names are {names}", "it's 'it' or \"it's\"; the plan's 'end'"):
        assert one_line(message) == message
    assert len(one_line("word " * 10**6)) <= 2000


def test_a_message_is_one_printable_line():
    assert one_line("a\n  b\r\nc\u2028d") == "a b c d"
    assert one_line("red \x1b[31m \udcff \u202e") == "red \\x1b[31m \\udcff \\u202e"


def test_whatever_is_given_is_shown():
    assert shown("gpu") == "'gpu'"
    assert shown(10**5000) == "an int that cannot be shown"
    assert shown(_Mute()) == "a _Mute that cannot be shown"
    assert len(shown(list(range(1000)))) <= 100
    assert len(shown({"key": LONG})) <= 100


def test_checks_show_little_of_what_is_wrong():
    for value in ([0] * 1000, LONG, -(10**5000), 3 + 0.5j, {LONG: LONG}):
        with pytest.raises(PartitionError) as caught:
            Device("d", value)
        assert len(str(caught.value)) < 220


@pytest.mark.parametrize("name", [LONG, "many words " * 500, "\x1b[2J" * 50])
def test_a_path_is_shown_short(tmp_path, name):
    for path in (f"{name}.json", tmp_path / f"{name}.json"):
        with pytest.raises(PartitionError, match=r"^cannot read .*; give a JSON file$") as caught:
            read_json(path)
        assert len(str(caught.value)) < 200


def test_errors_survive_processes():
    error = PartitionError(f"there is no {LONG}")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
