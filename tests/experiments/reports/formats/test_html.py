"""Tests of the HTML page: what it shows, and that no name becomes anything but text."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from experiments.comparison.records import Case, ModelRecord, Study
from experiments.reports.content.names import name_files
from experiments.reports.formats.html import to_html
from experiments.reports.formats.page import make_page
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
    return to_html(make_page(found, name_files(found)))


def hostile_study() -> Study:
    return solved_study(HOSTILE, HOSTILE[2])


def test_a_page_has_all_that_a_reader_asks_for() -> None:
    page = Parsed(html(solved_study()))
    for words in (
        "The exact solver (cp-sat) proves its plan optimal in 1 of 1 case",
        "Planners beside the exact solver, cp-sat",
        "m on a devices",
        "The best plan, by cp-sat",
        "The plan of greedy",
        "In the planners' own words",
        "device_map a b c",
        "no room for c",
        "Splits compared with the model",
        "fxpartition solve problems/1-m-a.json --solver chain --time-limit 20",
        "How to read this",
        "What this does not say",
        "2.13.0",
    ):
        assert words in page.words
    # One of ratios, five of the best plan, one of the search, and those of other plans.
    figures = [attributes["class"] for attributes in page.all("figure")]
    assert figures[:7] == ["ratios", "quotient", "memory", "alive", "load", "pipeline", "search"]
    assert len(page.all("svg")) == len(figures)


def test_the_page_needs_nothing_else() -> None:
    page = Parsed(html(hostile_study()))
    for tag in ("script", "link", "img", "iframe", "object", "embed", "base", "form"):
        assert page.all(tag) == []
    policy = next(entry for entry in page.all("meta") if "http-equiv" in entry)
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert str(policy["content"]).startswith("default-src 'none'; style-src 'unsafe-inline'")
    (style,) = re.findall(r"<style>(.*?)</style>", html(hostile_study()), flags=re.S)
    assert "url(" not in style
    assert "@import" not in style


def test_links_lead_within_the_page_or_to_files_of_the_report() -> None:
    page = Parsed(html(hostile_study()))
    anchors = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    targets = [str(attributes["href"]) for attributes in page.all("a")]
    assert len(targets) == 8
    assert sum(target.startswith("traces/") for target in targets) == 1
    for target in targets:
        within = target.startswith("#") and target[1:] in anchors
        beside = re.fullmatch(r"traces/[a-z0-9-]+\.json", target)
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
    page = Parsed(html(hostile_study()))
    text = "".join(page.text)
    for name in HOSTILE[:4] + HOSTILE[6:8]:
        shown = name.encode("ascii", "backslashreplace").decode()
        assert shown in text, name
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
    assert "{{ 7 * 7 }}{% raw %}" in text


def test_words_of_planners_keep_their_lines() -> None:
    rows = [row("peer", words="first\nsecond", status="failed"), row("auto", 3)]
    found = study(*rows, cases=(Case(key(), None, "too small"),))
    assert "<li><b>peer</b>: first\nsecond</li>" in html(found)


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
    assert page.all("figure") == []
    assert "Planners beside the exact solver, auto, objective bottleneck" in page.words


def test_every_plan_is_drawn_once() -> None:
    found = solved_study()
    again = dataclasses.replace(found.rows[1], planner="uniform")
    both = dataclasses.replace(found, rows=(*found.rows, again))
    page, before = Parsed(html(both)), Parsed(html(found))
    assert "The plan of uniform (chain): the same as of cp-sat" in page.words
    assert len(page.all("svg")) == len(before.all("svg"))


@pytest.mark.parametrize("cases", [20])
def test_many_cases_are_one_page(cases: int) -> None:
    made = [solved_study(model=f"model {index}") for index in range(cases)]
    parts: dict[str, Any] = {
        name: tuple(entry for each in made for entry in getattr(each, name))
        for name in ("models", "cases", "rows", "checks")
    }
    found = study(*parts.pop("rows"), **parts)
    text = html(found)
    page = Parsed(text)
    assert len([each for each in page.all("section") if each.get("class") == "model"]) == cases
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    own = [each for each in identifiers if not str(each).startswith("f")]
    assert len(set(own)) == len(own)
    assert len(text) < 40_000 * cases


def test_other_plans_take_little_of_a_page() -> None:
    """Tests that 25 such cases with 11 plans each, as compare has by default, stay below 4 MB."""
    problem, best = chain(400, 4, 10**9)
    names, devices = list(best.assignment), best.device_order
    case = key()
    rows = []
    for number in range(11):
        # Stages of all lengths: no plan is another's.
        cuts = [(80 + 5 * number) * device for device in (1, 2, 3)]
        stages = {name: sum(index >= cut for cut in cuts) for index, name in enumerate(names)}
        plan = PartitionPlan({name: devices[stage] for name, stage in stages.items()}, devices)
        rows.append(row(f"planner {number}", 100 + number, case=case, plan=plan))
    sizes = [
        len(html(study(*rows[:count], cases=(Case(case, problem),))).encode()) for count in (1, 11)
    ]
    assert sizes[0] < 70_000
    assert sizes[1] - sizes[0] < 10 * 7_500
