"""The reader of pages; that no block escapes it, links lead somewhere, and all pages are listed."""

import re

import pytest

from tests.support.documents import (
    PAGES,
    RUN,
    SAVED,
    Reader,
    anchors,
    broken_links,
    commands,
    difference,
    first_line,
    links,
    name_of,
    read_blocks,
)
from tests.support.page_lists import ELSEWHERE, LEFT_OUT, NIGHTLY, WIDE, WITH_PROCESSES
from tests.support.paths import ROOT

GUIDE = ROOT / "CONTRIBUTING.md"

PAGE = """# A page

```python
x = 3
print(x)
```

which prints

```text
3
```

```sh
fxpartition devices
```
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Write a page, and return what reads it."""
    monkeypatch.chdir(tmp_path)

    def read(text, left_out=()):
        path = tmp_path / "page.md"
        path.write_text(text)
        folder = tmp_path / f"folder{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return Reader(folder, left_out).read(path)

    return read


# -- the reader ---------------------------------------------------------------------------------


def test_a_page_is_run_in_order_in_one_namespace(page):
    later = PAGE + "\n```python\nprint(x + 1)\n```\n\n```text\n4\n```\n"
    assert page(later) == []
    assert page(later, {"fxpartition devices"}) == ["fxpartition devices"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("\n3\n```", "\n4\n```"), "page.md:3: the page shows\n4\nbut printed was\n3"),
        (("fxpartition devices", "fxpartition devises"), "page.md:14: .* ends with code 2"),
        (("fxpartition devices", "python -c 'raise SystemExit(7)'"), "ends with code 7"),
        (("```sh", "```"), "page.md:14: '```' opens no block"),
        (("```sh", "```cpp"), "page.md:14: nothing runs or prints this cpp block"),
        (("```python", "# Other\n\n```java"), "page.md:5: nothing runs or prints this java"),
        (("which prints", "## Another section"), "page.md:10: nothing runs or prints this text"),
        (("which prints\n", "which prints\n\n    indented"), "page.md:10: an indented block"),
    ],
)
def test_what_is_wrong_with_a_page_is_said(page, change, says):
    with pytest.raises(AssertionError, match=says):
        page(PAGE.replace(*change))


def test_a_console_block_compares_every_command(page):
    text = "```console\n$ echo one\none\n$ echo two && echo three\ntwo\n...\n```\n"
    page(text)
    with pytest.raises(AssertionError, match="'echo one'"):
        page(text.replace("\none", "\nother"))
    with pytest.raises(AssertionError, match="'echo two && echo three'"):
        page(text.replace("\n...", ""))


def test_an_error_that_a_page_shows_is_wanted(page):
    shown = "error: devices 'nonsense' is no list of devices; ..."
    text = f"```console\n$ fxpartition plan mlp --devices nonsense\n{shown}\n```\n"
    with pytest.raises(AssertionError, match="but printed was\nerror: "):
        page(text)
    page(text.replace(shown, "error: ...nonsense..."))
    with pytest.raises(AssertionError, match="ends with code 0"):
        page("```console\n$ echo error\nerror: none\n```\n")


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("greedy: feasible in 0.15 s", "greedy: feasible in 3 s", True),
        ("load 0.15 ms", "load 0.16 ms", False),
        ("0  cpu  329.7 kB     20.67 ms", "0  cpu  329.7 kB  7 us", True),
        ("0  cpu  329.7 kB     20.67 ms", "0  cpu  329.8 kB  20.67 ms", False),
        ("a  b\n-----\n", "a b   \n----------", True),
        ("a\n...\nz", "a\nz", True),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("a\n...", "b\na", False),
        ("a ... z", "a b z", True),
        ("a ... z", "a b\nz", False),
        ("a.c", "abc", False),
    ],
)
def test_only_times_of_the_clock_and_widths_may_differ(shown, printed, same):
    assert (difference(shown, printed) is None) is same


# -- the pages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_block_of_a_page_is_run_saved_or_listed(path):
    for block in read_blocks(path):
        assert (
            block.language in RUN
            or SAVED.match(block.text.partition("\n")[0])
            or first_line(block) in ELSEWHERE
        ), f"{block}: nothing runs or prints this block"


def test_what_is_listed_is_on_a_page_and_has_a_reason():
    known = set()
    for path in PAGES:
        for block in read_blocks(path):
            runs = block.language in ("sh", "console")
            known |= {command.text for command in commands(block)} if runs else {first_line(block)}
    assert known >= LEFT_OUT
    assert all({**NIGHTLY, **ELSEWHERE}.values())
    assert not {*NIGHTLY} & {*ELSEWHERE}
    assert {name_of(path) for path in PAGES} >= {*WITH_PROCESSES}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(path):
    assert broken_links(path) == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_no_page_speaks_of_somebody_s_folders(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.])/(?:tmp|home|work|root|usr|var|mnt|Users)/\S*", text) == []


@pytest.mark.parametrize("path", [*PAGES, GUIDE], ids=name_of)
def test_files_that_a_page_names_are_there(path):
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"(?<![\w/])((?:solver|fx_bridge|experiments|tests)/[\w./-]+)", text)
    assert [name for name in named if not (ROOT / name.rstrip(".")).exists()] == []


@pytest.mark.parametrize("path", [*PAGES, GUIDE], ids=name_of)
def test_lines_of_a_page_have_120_columns_at_most(path):
    text = path.read_text(encoding="utf-8")
    wide = [line for line in text.splitlines() if len(line) > 120]
    # The list can only shrink: a page that has become narrow leaves it.
    assert bool(wide) is (name_of(path) in WIDE), wide
    prose = re.sub(r"(?ms)^```.*?^```$", "", text)
    assert [line for line in prose.splitlines() if len(line) > 120 and line[0] != "|"] == []


def test_the_guide_has_no_broken_links():
    assert broken_links(GUIDE) == []


INDEXES = [path for path in PAGES if path.name == "README.md" and path.parent != ROOT]


def test_every_page_is_once_in_the_nearest_index():
    for path in PAGES:
        if path in INDEXES:
            continue
        above = [index for index in INDEXES if path.is_relative_to(index.parent)]
        if not above:
            continue
        index = max(above, key=lambda index: len(index.parts))
        text = index.read_text(encoding="utf-8")
        target = path.relative_to(index.parent).as_posix()
        lines = [line for line in text.splitlines() if f"]({target})" in line]
        assert len(lines) == 1 and re.match(r"\* \[.*\]\(.*\): \S", lines[0]), name_of(path)


def test_broken_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# Some `code`, twice\n\n## Some code, twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#some-code-twice-1) [c](#here) [d](https://x.org/y#z)\n"
        "`[e](none.md)` [f](none.md) [g](other.md#none) [h](#there)\n```text\n[i](none.md)\n```\n"
    )
    assert anchors(tmp_path / "other.md") == {"some-code-twice", "some-code-twice-1"}
    assert len(links(page)) == 6
    assert broken_links(page) == ["none.md", "other.md#none", "#there"]
