"""Pages of plans, read as a browser reads them."""

import re
from html.parser import HTMLParser

import pytest

from fx_bridge.presentation.page import HandOver, plan_page
from solver.evaluation.result import judge
from solver.model.quantities import format_bytes, format_ns
from solver.model.text import printable
from tests.support.report_plans import PLANS

VOID = {"meta", "link", "br"}
CLOSED_BY_THE_NEXT = {"li", "td", "th", "tr", "dt", "dd"}
TAGS = {
    *("html", "head", "meta", "link", "title", "style", "body", "main", "section", "nav", "div"),
    *("h1", "h2", "h3", "p", "pre", "a", "b", "i", "em", "small", "span", "ul", "li"),
    *("details", "summary", "dl", "dt", "dd", "table", "tr", "th", "td"),
    *("figure", "figcaption", "svg", "path", "line", "rect"),
}
ATTRIBUTES = {
    *("class", "id", "href", "title", "style", "open", "colspan", "lang", "charset", "name"),
    *("content", "http-equiv", "rel", "viewbox", "preserveaspectratio", "d"),
    *("x", "x1", "x2", "y1", "y2", "width", "height"),
}


class Page(HTMLParser):
    """The elements of a page, each with its text; fails where they do not nest."""

    def __init__(self, text):
        super().__init__()
        self.elements, self._open, self.shown = [], [], []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS and {name for name, _ in attributes} <= ATTRIBUTES, (tag, attributes)
        element = {"tag": tag, "text": "", "within": list(self._open), **dict(attributes)}
        self.elements.append(element)
        if tag not in VOID | CLOSED_BY_THE_NEXT:
            self._open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self._open.pop()

    def handle_endtag(self, tag):
        assert self._open.pop()["tag"] == tag

    def handle_data(self, data):
        last = [element for element in self.elements[-1:] if element not in self._open]
        for element in [*self._open, *last]:
            element["text"] += data
        if self._open and self._open[-1]["tag"] != "style":
            self.shown.append(data)

    def of(self, tag, **attributes):
        wanted = {"tag": tag, **attributes}.items()
        return [element for element in self.elements if wanted <= element.items()]

    @property
    def text(self):
        return " ".join(self.shown)


def page_of(name, **settings):
    problem, plan = PLANS[name]()
    result = judge("by hand", problem, plan, 0.0)
    return Page(plan_page(result, **settings)), result


@pytest.mark.parametrize("name", PLANS)
def test_a_page_loads_nothing_and_names_every_operator_device_and_stage(name):
    page, result = page_of(name)
    for element in page.elements:
        assert element.get("href", "#").startswith(("#", "data:,"))
        assert "url(" not in element.get("style", "")
    assert not re.search("@import|url\\(", page.of("style")[0]["text"])
    items = [element["text"] for element in page.of("li")]
    for operator in result.evaluation.problem.operators:
        assert any(text.startswith(printable(operator.name)) for text in items)
    for usage in result.evaluation.usage:
        assert printable(usage.device) in page.text
    targets = {element.get("id") for element in page.elements}
    assert all(link["href"][1:] in targets for link in page.of("a"))


def test_names_are_text_whatever_they_say():
    hostile = "<script>alert('x')</script>\n\u202e"
    overs = [HandOver(hostile, hostile, True)]
    page, _ = page_of("nasty", title=hostile, command=hostile, hand_overs=overs)
    # No tag or attribute but the page's own: the parser checks that.
    assert page.of("h1")[0]["text"] == printable(hostile)
    assert page.text.count(printable(hostile)) == 5  # title, heading, command, program, words


def test_rows_of_modules_have_the_evaluators_numbers():
    page, result = page_of("modular")
    rows = {}
    for summary in page.of("summary"):
        cells = [e["text"] for e in page.elements if e["within"][-1:] == [summary]]
        if len(cells) == 6:
            rows[cells[0]] = cells[1:]
    usage = result.evaluation.usage
    weights = format_bytes(sum(entry.weights_bytes for entry in usage))
    time = format_ns(sum(entry.compute_ns for entry in usage))
    sent = format_bytes(result.evaluation.transfer_bytes)
    assert rows["the model"] == ["", weights, time, sent, "10"]
    assert rows["model.layers.1"] == ["cuda:0", "2 kB", "9 us", "", "2"]
    assert rows["model.layers.2"] == ["", "4 kB", "13 us", "500 B", "2"]
    modules = {operator.module for operator in result.evaluation.problem.operators}
    assert modules < rows.keys()
    # Closed but where a device's share begins or ends.
    opened = [e["text"] for e in page.of("summary") if "open" in e["within"][-1]]
    layers = [text.split("cuda")[0][:14] for text in opened if "model.layers." in text]
    assert layers == ["model.layers.2"]


def test_words_of_programs_and_the_command_are_there():
    overs = [HandOver("vllm", "A=1,2", True), HandOver("nemo", "it divides h.0", False)]
    page, _ = page_of("two", command="fxpartition plan x", hand_overs=overs)
    assert [element["text"] for element in page.of("pre")] == ["fxpartition plan x", "A=1,2"]
    assert "it divides h.0" in page.text
