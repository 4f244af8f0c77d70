"""Tests of the Markdown page."""

import re

import pytest

from experiments.reports.content.names import name_files
from experiments.reports.formats.markdown import escape_markdown, to_markdown
from experiments.reports.formats.page import make_report
from tests.support.studies import HOSTILE, solved_study


def markdown(found):
    return to_markdown(make_report(found, name_files(found)))


def test_a_page_has_all_that_a_reader_asks_for():
    page = markdown(solved_study())
    for heading in ("# How plans compare", "## All cases", "## m", "## How to read this"):
        assert f"\n{heading}\n" in f"\n{page}"
    assert "| peer a | spills | - |" in page and "| no room for c |" in page
    assert "3 x 500 B; links" in page
    assert "[pages/m-a.html](pages/m-a.html)" in page
    assert "    fxpartition solve problems/m-a.json.gz --solver cp-sat --time-limit 20" in page
    assert "    fxpartition score plans/m-a-chain.json.gz problems/m-a.json.gz" in page
    assert "| torch | 2.13.0 |" in page
    assert "At most 20 s for each answer, 2 workers, seed 0. The whole run took 12.00 s" in page


def test_every_row_of_a_table_has_as_many_cells_as_its_header():
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
        assert seen > 15


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
def test_names_read_as_they_are(text, expected):
    assert escape_markdown(text) == expected


def test_hostile_names_change_nothing():
    page = markdown(solved_study(HOSTILE, HOSTILE[0]))
    page.encode()
    assert all(char == "\n" or char.isprintable() for char in page)
    # The only tags are those that fold, each pair around its own.
    tags = re.findall(r"(?<!\\)<[^>]*>?", page)
    assert tags == re.findall(r"(?<!\\)<[^>]*>?", markdown(solved_study()))
    assert set(tags) == {"<details>", "<summary>", "</summary>", "</details>"}
    assert not re.search(r"(?<!:\\/)https?:\/\/", page)
    # All links are to files of the report.
    links = re.findall(r"(?<!\\)\]\(([^)]*)\)", page)
    stem = "script-alert-1-script-script-alert-1-script"
    assert links == [
        f"problems/{stem}.json.gz",
        f"plans/{stem}-chain.json.gz",
        f"pages/{stem}.html",
    ]
