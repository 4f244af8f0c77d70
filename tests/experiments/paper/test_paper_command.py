"""The research script: what it makes, takes, puts into pages and finds different."""

import pytest

from experiments.paper import command as paper
from experiments.paper.catalogue import ENTRIES, Entry
from experiments.paper.tables import PaperTable, marked_tables, with_tables
from solver import PartitionError

PAGE = """# Title

<!-- table: small -->
old | text
<!-- end of table -->

between &amp; kept

<!-- table: other -->
<!-- end of table -->
"""


def small(bench):
    return PaperTable(("name", "value", "s"), (("a", "1", "0.5"),), frozenset({"s"}))


def other(bench):
    return PaperTable(("planners",), tuple((name,) for name in bench.planners))


def drawn(bench):
    return {"plan.svg": "<svg/>\n"}


@pytest.fixture
def made(monkeypatch, tmp_path, capsys):
    """Run the script with three small entries in a folder of its own."""
    entries = {"small": Entry("a table", small), "other": Entry("planners", other, True)}
    entries["figures"] = Entry("one figure", drawn)
    monkeypatch.setattr(paper, "ENTRIES", entries)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(PAGE)

    def run(*words):
        code = paper.main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_every_table_and_figure_is_written(made, tmp_path):
    code, output, errors = made()
    assert (code, output) == (0, "")
    assert (tmp_path / "paper" / "small.md").read_text() == (
        "| name | value | s |\n|---|---|---|\n| a | 1 | 0.5 |\n"
    )
    assert (tmp_path / "paper" / "figures" / "plan.svg").read_text() == "<svg/>\n"
    assert "small: done" in errors and "all done in" in errors


def test_other_planners_are_asked_only_where_a_table_needs_them(made, tmp_path):
    made("--only", "small")
    assert {path.name for path in (tmp_path / "paper").iterdir()} == {"small.md"}
    made("--only", "other")
    text = (tmp_path / "paper" / "other.md").read_text()
    assert "| auto |" in text and "| pipedream |" in text
    assert "| cp-sat |" not in text


def test_names_are_listed_and_checked(made):
    assert made("--list")[:2] == (
        0,
        "small        a table\nother        planners\nfigures      one figure\n",
    )
    code, _, errors = made("--only", "smal")
    assert code == 2
    assert errors == "error: there is no 'smal' to make; write one of small, other, figures\n"


def test_a_page_is_updated_and_then_there_is_no_difference(made, tmp_path):
    page = tmp_path / "page.md"
    code, output, _ = made("--check", "page.md")
    assert code == 1
    assert output.splitlines() == [
        "page.md: table small: there is no table; write one with --update",
        "page.md: table other: there is no table; write one with --update",
        "figures/plan.svg: there is no such figure",
    ]
    assert made("--update", "page.md")[:2] == (0, "")
    assert "<!-- table: small -->\n| name |" in page.read_text()
    assert "between &amp; kept" in page.read_text()
    assert made("--check", "page.md")[:2] == (0, "")
    page.write_text(page.read_text().replace("| a | 1 | 0.5 |", "| a | 1 | 0.7 |"))
    assert made("--check", "page.md")[0] == 0  # a time of the clock
    page.write_text(page.read_text().replace("| a | 1 | 0.7 |", "| a | 2 | 0.7 |"))
    (tmp_path / "figures" / "plan.svg").write_text("<svg>\n")
    assert made("--check", "page.md")[:2] == (
        1,
        "page.md: table small: row 1 (a), value: '2' is shown, '1' is found\n"
        "figures/plan.svg: another figure is shown\n",
    )


def test_only_what_is_made_is_updated_and_checked(made, tmp_path):
    made("--only", "small", "--update", "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| a | 1 | 0.5 |" in text and text.endswith(PAGE.partition("<!-- table: other")[2])
    assert made("--only", "small", "--check", "page.md")[0] == 0
    (tmp_path / "bare.md").write_text("# Title\n")
    assert made("--only", "small", "--check", "bare.md")[:2] == (
        1,
        "bare.md: table small: it is not shown\n",
    )


def test_tables_may_stand_in_several_pages(made, tmp_path):
    for name in ("small", "other"):
        (tmp_path / f"{name}.md").write_text(f"<!-- table: {name} -->\n<!-- end of table -->\n")
    pages = ("small.md", "other.md")
    assert made("--update", *pages)[:2] == (0, "")
    assert "| a | 1 | 0.5 |" in (tmp_path / "small.md").read_text()
    assert "| pipedream |" in (tmp_path / "other.md").read_text()
    assert made("--check", *pages)[:2] == (0, "")
    assert made("--only", "other", "--check", "small.md")[:2] == (
        1,
        "small.md: table other: it is not shown\n",
    )
    (tmp_path / "other.md").write_text("# Title\n")
    assert made("--only", "other", "--check", *pages)[:2] == (
        1,
        "small.md, other.md: table other: it is not shown\n",
    )
    (tmp_path / "other.md").write_text((tmp_path / "small.md").read_text())
    assert made("--check", *pages)[2] == (
        "error: table 'small' is in small.md and in other.md; leave one out\n"
    )


def test_an_interrupted_run_keeps_what_was_done(made, tmp_path, monkeypatch):
    def interrupted(bench):
        raise KeyboardInterrupt

    entries = {**paper.ENTRIES, "figures": Entry("stops", interrupted)}
    monkeypatch.setattr(paper, "ENTRIES", entries)
    assert made()[0] == 130
    assert (tmp_path / "paper" / "other.md").is_file()


def test_what_cannot_be_read_or_written_is_one_line(made, tmp_path):
    (tmp_path / "file").write_text("")
    assert made("--out", "file")[0] == 2
    assert made("--check", "none.md")[2].startswith("error: cannot read none.md")
    (tmp_path / "bad.md").write_text("<!-- table: small -->\n")
    assert made("--update", "bad.md")[0] == 2
    assert (tmp_path / "bad.md").read_text() == "<!-- table: small -->\n"


# -- markers ------------------------------------------------------------------------------------


def test_tables_between_markers_are_found_and_replaced():
    known = ("small", "other", "third")
    assert marked_tables(PAGE, known) == {"small": "old | text\n", "other": ""}
    changed = with_tables(PAGE, {"other": "new\n", "third": "nowhere\n"})
    assert marked_tables(changed, known) == {"small": "old | text\n", "other": "new\n"}
    assert with_tables(changed, {"other": ""}) == PAGE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!-- table: none -->\n<!-- end of table -->\n", "table 'none' is unknown"),
        ("<!-- table: small -->\n", "has no partner"),
        ("<!-- end of table -->\n", "has no partner"),
        (PAGE + PAGE, "table 'small' is marked twice"),
        (
            "<!-- table: small -->\n<!-- table: other -->\n<!-- end of table -->\n",
            "markers of table 'small' hold",
        ),
    ],
)
def test_markers_that_do_not_fit_are_refused(text, says):
    with pytest.raises(PartitionError, match=says):
        marked_tables(text, ("small", "other"))


def test_every_entry_says_what_it_makes():
    assert all(entry.description for entry in ENTRIES.values())
