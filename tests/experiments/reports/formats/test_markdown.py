"""Tests of the Markdown page."""

from __future__ import annotations

import dataclasses
import re

import pytest

from experiments.comparison.records import Case, Study
from experiments.reports.content.names import name_files
from experiments.reports.formats.markdown import escape_markdown, to_markdown
from experiments.reports.formats.page import make_page
from tests.support.studies import HOSTILE, key, row, solved_study, study


def markdown(found: Study) -> str:
    return to_markdown(make_page(found, name_files(found)))


def test_a_page_has_all_that_a_reader_asks_for() -> None:
    page = markdown(solved_study())
    for heading in (
        "# How plans compare",
        "## All cases",
        "## m",
        "### m on a devices",
        "#### The best plan, by cp-sat",
        "## How to read this",
        "## What this does not say",
        "## Where it ran",
    ):
        assert f"\n{heading}\n" in f"\n{page}"
    assert "| peer a | spills | - |" in page
    assert "* **peer a**: no room for c" in page
    assert "* **peer a**: device\\_map a b c" in page
    assert "Devices: 3 x 500 B (default)" in page
    assert "| cp-sat | 0.10 s | bottleneck | 9 us | 1 us | 88.89 % |" in page
    assert "[traces/1-m-a.json](traces/1-m-a.json)" in page
    assert "    fxpartition solve problems/1-m-a.json --solver cp-sat --time-limit 20" in page
    assert "    fxpartition score plans/1-m-a-chain.json problems/1-m-a.json" in page
    assert "| torch | 2.13.0 |" in page
    assert "weight of c" in page
    assert "At most 20 s for each answer, 2 workers, seed 0. The whole run took 12.00 s" in page


def test_every_row_of_a_table_has_as_many_cells_as_its_header() -> None:
    for found in (solved_study(), solved_study(HOSTILE, HOSTILE[7])):
        header = 0
        seen = 0
        for line in markdown(found).splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line))
            if not line.startswith("|"):
                header = 0
            elif not header:
                header = cells
            else:
                seen += 1
                assert cells == header, line
        assert seen > 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b\n*c*_d_", r"a\|b \*c\*\_d\_"),
        ("[a](javascript:b)", r"\[a\](javascript:b)"),
        ("<b>&amp;", r"\<b\>\&amp;"),
        ("https://a.example www.b.example c@d", r"https:\//a.example www\.b.example c\@d"),
        ("\x1b[31m\u202e\udcff", r"\\x1b\[31m\\u202e\\udcff"),
        ("back\\slash", r"back\\slash"),
    ],
)
def test_names_read_as_they_are(text: str, expected: str) -> None:
    assert escape_markdown(text) == expected


def test_hostile_names_change_nothing() -> None:
    page = markdown(solved_study(HOSTILE, HOSTILE[0]))
    page.encode()
    assert all(char == "\n" or char.isprintable() for char in page)
    # The only tags are those that fold, each pair around its own.
    tags = re.findall(r"(?<!\\)<[^>]*>?", page)
    folded = markdown(solved_study()).count("<details>")
    assert folded and tags == ["<details>", "<summary>", "</summary>", "</details>"] * folded
    assert not re.search(r"(?<!:\\/)https?:\/\/", page)
    # All links are to files of the report.
    links = re.findall(r"(?<!\\)\]\(([^)]*)\)", page)
    assert links == ["traces/1-script-alert-1-script-script-alert-1-script.json"]


def test_what_begins_a_list_does_not_within_one() -> None:
    case = key()
    found = study(row("-", case=case, reason="x"), row("1.", case=case), cases=(Case(case),))
    found = dataclasses.replace(found, models=())
    page = markdown(found)
    assert "* **-**: x" in page
    assert "* **1.**: nothing found" in page
    assert "| - | nothing found |" in page


def test_steps_of_searches_are_folded() -> None:
    page = markdown(solved_study())
    start = page.index("<details><summary>What each step of the searches took and gained")
    folded = page[start : page.index("</details>", start)]
    assert "| cp-sat | bottleneck | borders | 1 | 0.25 | 1.50 | 3 us | 0 ns -\\> 3 us |" in folded
    without = dataclasses.replace(
        solved_study(), rows=tuple(dataclasses.replace(row, log=()) for row in solved_study().rows)
    )
    assert "What each step" not in markdown(without)
    assert markdown(without).count("<details>") == page.count("<details>") - 1


def test_commands_leave_out_the_same_steps() -> None:
    found = solved_study()
    rows = (*found.rows[:2], dataclasses.replace(found.rows[2], without=("branch and bound", "x")))
    page = markdown(dataclasses.replace(found, rows=rows, checks=()))
    assert (
        "--solver cp-sat --time-limit 20 --workers 2 --seed 0 --without 'branch and bound'" in page
    )
    assert "--without x\n" in page
