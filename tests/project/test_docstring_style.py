"""Docstrings say more than types, and sentences name who acts."""

import re
from collections import Counter

from tests.support.paths import ROOT
from tests.support.sources import PACKAGES, docstrings, files, text_of

SECTIONS = {
    "Parameters",
    "Other Parameters",
    "Attributes",
    "Returns",
    "Yields",
    "Receives",
    "Raises",
    "Warns",
}

VAGUE = re.compile(r"\b(?:somebody|nobody|so[\s#]+(?:many|much))\b", re.IGNORECASE)
WH_FIRST = re.compile(r"(?:what|which|who|whose|how|whether|where|when|why)\b", re.IGNORECASE)
MOST_WHAT = 2
"""Of 1,000 words of a room's docstrings."""
WORD = re.compile(r"[A-Za-z']+")


def types_alone(text):
    """The entries of a numpydoc docstring below which nothing is said."""
    lines = text.splitlines()
    section = None
    for number, (line, below) in enumerate(zip(lines, [*lines[1:], ""], strict=True)):
        if below.strip() and not below.strip("-"):
            section = line
        is_entry = section in SECTIONS and line[:1].strip() and line.strip("-")
        if is_entry and line != section and not below.startswith(" "):
            yield number, line


def room(file):
    return "/".join(file.parts[:2])


def every_docstring():
    """Pairs of a room and one of its docstrings."""
    return [
        (room(file), text)
        for package in PACKAGES
        for file in files(package)
        for text in docstrings(file)
    ]


def test_no_entry_of_a_docstring_repeats_a_type_alone():
    assert not [line for _, text in every_docstring() for line in types_alone(text)]


def test_sentences_name_who_acts_and_how_much():
    texts = [(room(file), text_of(file)) for package in PACKAGES for file in files(package)]
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        texts.append((page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")))
    assert not [(name, found) for name, text in texts if (found := VAGUE.findall(text))]


def test_docstrings_begin_with_a_noun_or_a_verb():
    assert not [text for _, text in every_docstring() if WH_FIRST.match(text)]


def test_docstrings_name_things_by_nouns():
    words: Counter[str] = Counter()
    what: Counter[str] = Counter()
    for name, text in every_docstring():
        said = [word.lower() for word in WORD.findall(text)]
        words[name] += len(said)
        what[name] += said.count("what")
    # A room of few words may say it once.
    most = {name: max(1, MOST_WHAT * count // 1000) for name, count in words.items()}
    assert not {name: count for name, count in what.items() if count > most[name]}


def test_the_reader_finds_what_it_looks_for():
    text = """Do it.

Parameters
----------
first, second : int
third : str
    What it is called.

    More of it.
fourth : int

Returns
-------
Plan

Examples
--------
text
"""
    assert [line for _, line in types_alone(text)] == [
        "first, second : int",
        "fourth : int",
        "Plan",
    ]
    assert len(VAGUE.findall("Nobody takes so\n # many; somebody else, so much. Somebodyelse")) == 4
