"""Tests of the HTML page: what it shows, and that no name becomes anything but text."""

import base64
import hashlib
import re
from collections import Counter
from html.parser import HTMLParser

from experiments.comparison.records import Case, ModelRecord
from experiments.reports.content.names import name_files
from experiments.reports.formats.html import to_html
from experiments.reports.formats.page import make_report
from tests.support.studies import HOSTILE, key, row, solved_study, study

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Parsed(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.text = []
        self.open = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def handle_comment(self, data):
        raise AssertionError(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self):
        return " ".join("".join(self.text).split())


def html(found):
    return to_html(make_report(found, name_files(found)))


def hostile_study():
    return solved_study(HOSTILE, HOSTILE[2])


def test_planners_are_first_then_cases_then_folds():
    text = html(solved_study())
    places = [
        text.index(part)
        for part in ("<h1>", "<table>", '<section id="all">', '<section id="model-1">')
    ]
    assert places == sorted(places)
    fold = text[text.index('<details id="case-1">') :]
    assert fold.index("<table>") < fold.index("</details>")


def test_the_page_needs_nothing_else():
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


def test_links_lead_within_the_page_or_to_files_of_the_report():
    page = Parsed(html(hostile_study()))
    anchors = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    targets = [str(attributes["href"]) for attributes in page.all("a")]
    kinds = Counter(target.partition("/")[0] for target in targets if target[0] != "#")
    assert kinds == {"problems": 1, "plans": 1, "pages": 1}
    for target in targets:
        within = target.startswith("#") and target[1:] in anchors
        beside = re.fullmatch(r"(plans|problems)/[a-z0-9-]+\.json\.gz", target)
        beside = beside or re.fullmatch(r"pages/[a-z0-9-]+\.html", target)
        assert within or beside, target
    assert all(re.fullmatch(r"[A-Za-z0-9-]+", str(anchor)) for anchor in anchors)


def test_no_name_becomes_an_element_or_an_attribute():
    plain = tuple(f"n{index}" for index in range(len(HOSTILE)))

    def shape(found):
        page = Parsed(html(found))
        return [(tag, tuple(sorted(attributes))) for tag, attributes in page.elements]

    assert shape(hostile_study()) == shape(solved_study(plain, plain[2]))


def test_names_are_shown_as_they_are():
    for name in HOSTILE[:4] + HOSTILE[6:8]:
        page = Parsed(html(solved_study((name, "b"), name)))
        assert name in "".join(page.text)
        for attributes in (attributes for _, attributes in page.elements):
            for attribute, value in attributes.items():
                assert not attribute.startswith("on")
                assert "javascript:" not in str(value) or attribute == "aria-label"


def test_no_character_turns_the_direction_or_is_no_text():
    text = html(hostile_study())
    text.encode("utf-8")
    assert all(char == "\n" or char.isprintable() for char in text)
    assert "\\u202egnp.exe" in html(solved_study(model=HOSTILE[5]))
    # What a template would compute is not computed again.
    assert "{{ 7 * 7 }}{% raw %}" in html(solved_study(model=HOSTILE[6]))


def test_what_is_missing_is_said():
    found = study(
        row("auto", status="infeasible"),
        models=(ModelRecord("broken", reason="no such luck"), ModelRecord("m")),
        cases=(Case(key(), None, "too small"),),
    )
    page = Parsed(html(found))
    for words in (
        "Could not be compared: no such luck",
        "could not be made: too small",
        "no plan e",
    ):
        assert words in page.words
    assert Parsed(html(study())).all("table")
