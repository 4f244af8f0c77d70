"""Tests of the HTML page: what it shows, and that no name becomes anything but text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

from experiments.comparison.records import Case, ModelRecord, Study
from experiments.reports.content.names import name_files
from experiments.reports.formats.html import to_html
from experiments.reports.formats.page import MOST_SHOWN, make_report
from solver import PartitionPlan
from tests.support.report_plans import chain
from tests.support.studies import HOSTILE, key, row, solved_study, study

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Parsed(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())


def html(found: Study) -> str:
    return to_html(make_report(found, name_files(found)).page)


def hostile_study() -> Study:
    return solved_study(HOSTILE, HOSTILE[2])


def test_a_page_has_all_that_a_reader_asks_for() -> None:
    page = Parsed(html(solved_study()))
    for words in (
        "The exact solver (cp-sat) proves its plan optimal in 1 of 1 case",
        "Planners beside the exact solver, cp-sat",
        "a: 3 us, proven optimal, by cp-sat",
        "3 x 500 B; links unlimited",
        "no room for c",
        "NOT EQUAL in 1 of 2",
        "fxpartition solve problems/m-a.json.gz --solver chain --time-limit 20",
        "How to read this",
        "What this does not say",
        "2.13.0",
    ):
        assert words in page.words
    # One of all answers, and two of the best plan of the case.
    assert len(page.all("figure")) == len(page.all("svg")) == 3


def test_the_first_figure_is_first_then_the_table_then_folds() -> None:
    text = html(solved_study())
    places = [
        text.index(part)
        for part in ("<h1>", "<figure>", '<section id="all">', '<section id="model-1">')
    ]
    assert places == sorted(places)
    fold = text[text.index('<details id="case-1">') :]
    assert fold.index("<svg") < fold.index("<table>") < fold.index("</details>")


def test_the_page_needs_nothing_else() -> None:
    page = Parsed(html(hostile_study()))
    for tag in ("link", "img", "iframe", "object", "embed", "base", "form"):
        assert page.all(tag) == []
    policy = next(entry for entry in page.all("meta") if "http-equiv" in entry)
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert str(policy["content"]).startswith("default-src 'none'; style-src 'unsafe-inline'")
    # The one script is the one that the policy names, whatever the study.
    (script,) = re.findall(r"<script>(.*?)</script>", html(hostile_study()), flags=re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in str(policy["content"])
    assert f"<script>{script}</script>" in html(solved_study())
    (style,) = re.findall(r"<style>(.*?)</style>", html(hostile_study()), flags=re.S)
    assert "url(" not in style
    assert "@import" not in style


def test_links_lead_within_the_page_or_to_files_of_the_report() -> None:
    page = Parsed(html(hostile_study()))
    anchors = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    targets = [str(attributes["href"]) for attributes in page.all("a")]
    kinds = Counter(target.partition("/")[0] for target in targets if target[0] != "#")
    assert kinds == {"figures": 6, "problems": 1, "plans": 1, "traces": 1}
    for target in targets:
        within = target.startswith("#") and target[1:] in anchors
        beside = re.fullmatch(r"(traces|plans|problems)/[a-z0-9-]+\.json\.gz", target)
        beside = beside or re.fullmatch(r"figures/[a-z0-9-]+\.(svg|pdf)", target)
        assert within or beside, target
    assert all(re.fullmatch(r"[A-Za-z0-9-]+", str(anchor)) for anchor in anchors)


def test_no_name_becomes_an_element_or_an_attribute() -> None:
    """Tests that names change what is said, and nothing of how the page is built."""
    # As long as the hostile ones, so that figures shorten alike.
    plain = tuple(f"n{index}" for index in range(len(HOSTILE)))

    def shape(found: Study) -> list[tuple[str, tuple[str, ...]]]:
        page = Parsed(html(found))
        return [(tag, tuple(sorted(attributes))) for tag, attributes in page.elements]

    drawn = {"title", "tspan"}
    hostile, harmless = (
        [entry for entry in shape(found) if entry[0] not in drawn]
        for found in (hostile_study(), solved_study(plain, plain[2]))
    )
    assert hostile == harmless
    allowed = {tag for tag, _ in harmless}
    assert {tag for tag, _ in shape(hostile_study())} <= allowed | drawn


def test_names_are_shown_as_they_are() -> None:
    for name in HOSTILE[:4] + HOSTILE[6:8]:
        page = Parsed(html(solved_study((name, "b"), name)))
        assert name in "".join(page.text)
        for attributes in (attributes for _, attributes in page.elements):
            for attribute, value in attributes.items():
                assert not attribute.startswith("on")
                assert "javascript:" not in str(value) or attribute == "aria-label"


def test_no_character_turns_the_direction_or_is_no_text() -> None:
    text = html(hostile_study())
    text.encode("utf-8")
    assert all(char == "\n" or char.isprintable() for char in text)
    assert "\\u202egnp.exe" in text
    # What a template would compute is not computed again.
    assert "{{ 7 * 7 }}{% raw %}" in html(solved_study(model=HOSTILE[6]))


def test_what_is_missing_is_said_and_not_drawn() -> None:
    found = study(
        row("auto", status="infeasible"),
        models=(ModelRecord("broken", reason="no such luck"), ModelRecord("m")),
        cases=(Case(key(), None, "too small"),),
    )
    page = Parsed(html(found))
    assert page.all("svg") == []
    for words in ("no such luck", "too small", "no plan exists"):
        assert words in page.words
    assert Parsed(html(study())).all("table")


def test_without_ratios_there_is_a_table_and_no_figure() -> None:
    page = Parsed(html(study(row("chain"), row("auto", 1))))
    # The one ratio is that of the exact solver to itself.
    assert len(page.all("figure")) == 1
    assert "Planners beside the exact solver, auto, objective bottleneck" in page.words


def merged(made: list[Study]) -> Study:
    parts: dict[str, Any] = {
        name: tuple(entry for each in made for entry in getattr(each, name))
        for name in ("models", "cases", "rows", "checks")
    }
    return study(*parts.pop("rows"), **parts)


def test_many_cases_are_one_page() -> None:
    cases = MOST_SHOWN + 5
    text = html(merged([solved_study(model=f"model {index}") for index in range(cases)]))
    page = Parsed(text)
    identifiers = [str(attributes["id"]) for _, attributes in page.elements if "id" in attributes]
    assert len(set(identifiers)) == len(identifiers)
    folds = [name for name in identifiers if name.startswith("case-")]
    assert len(folds) == MOST_SHOWN
    assert len(page.all("figure")) == 1 + 2 * MOST_SHOWN
    # All are in the table, and what is not shown is said.
    assert f"model {cases - 1}" in page.words and "5 more cases: see results.json" in page.words
    assert len(text) < 30_000 * MOST_SHOWN


def test_a_page_as_compare_makes_it_is_small() -> None:
    """Tests that 21 cases of a chain on four devices, with 11 plans each, stay below 1 MB."""
    problem, best = chain(400, 4, 10**9)
    names, devices = list(best.assignment), best.device_order
    case = key()
    rows = []
    for number in range(11):
        cuts = [(80 + 5 * number) * device for device in (1, 2, 3)]
        stages = {name: sum(index >= cut for cut in cuts) for index, name in enumerate(names)}
        plan = PartitionPlan({name: devices[stage] for name, stage in stages.items()}, devices)
        rows.append(row(f"planner {number}", 100 + number, case=case, plan=plan))
    page = html(study(*rows, cases=(Case(case, problem),)))
    fold = page[page.index('<details id="case-1">') : page.index("How to read this</h2>")]
    assert len(fold) < 40_000


def test_prose_of_a_case_is_short() -> None:
    def words(count: int) -> int:
        page = html(merged([solved_study(model=f"m{index}") for index in range(count)]))
        for tag in ("style", "script", "svg", "table", "pre", "nav"):
            page = re.sub(rf"<{tag}[ >].*?</{tag}>", " ", page, flags=re.S)
        return len(re.sub(r"<[^>]*>", " ", re.sub(r"</?[ab]\b[^>]*>", "", page)).split())

    assert words(2) - words(1) < 85
    assert words(1) < 540
