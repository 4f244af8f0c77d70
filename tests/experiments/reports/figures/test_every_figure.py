"""All figures: no name becomes more than text, and the numbers of the study are written."""

import re
from xml.etree import ElementTree

import pytest

from experiments.reports.content.dots import dots
from experiments.reports.content.frontier import Frontier
from experiments.reports.figures.devices import devices_figure
from experiments.reports.figures.dots import dots_figure
from experiments.reports.figures.drawing import BLUE, MUTED, PAPER, VERMILLION, Picture
from experiments.reports.figures.frontier import frontier_figure
from experiments.reports.figures.stages import stages_figure
from solver.model.quantities import format_bytes, format_ns
from tests.support.report_plans import NASTY, PLANS, details
from tests.support.studies import HOSTILE, key, row

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
ELEMENTS = {"svg", "title", "g", "path", "use", "defs", "clipPath", "rect", "text"}


def checked(svg):
    """The root of a figure without script, style, comment or link elsewhere, and its texts."""
    root = ElementTree.fromstring(svg)
    assert "<!" not in svg and "<?" not in svg
    identifiers = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(identifiers) == len(set(identifiers))
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in ELEMENTS
        for attribute, value in element.attrib.items():
            assert not attribute.startswith("on")
            if attribute == LINK:
                assert value[0] == "#" and value[1:] in identifiers
            elif "url(" in value:
                assert re.findall(r"url\((?!#)", value) == []
    assert root[0].tag == f"{SVG}title" and root[0].text == root.get("aria-label")
    return root, [element.text for element in root.iter(f"{SVG}text")]


def drawn_stages(shown):
    return stages_figure("x", shown, lambda _: [f"runs {each.number}" for each in shown.stages]).svg


def arcs(root, *colours):
    """Where the arcs of some colours start and end: heights."""
    for path in root.iter(f"{SVG}path"):
        style, commands = path.get("style", ""), path.get("d")
        if "C" in commands and any(f"stroke: {colour}" in style for colour in colours):
            numbers = [float(text) for text in re.findall(r"-?[\d.]+", commands)]
            yield numbers[1], numbers[-1]


@pytest.mark.parametrize("name", PLANS)
def test_stages_have_their_numbers_and_arcs_join_them(name):
    shown = details(name)
    root, written = checked(drawn_stages(shown))
    height = (float(root.get("viewBox").split()[3]) - 38) / len(shown.stages)
    found = [
        [int((y - 20) // height) for y in ends] for ends in arcs(root, BLUE, MUTED, VERMILLION)
    ]
    assert found == [[arc.source, arc.target] for arc in shown.arcs]
    # Those that go back stand out.
    back = sum(arc.source > arc.target for arc in shown.arcs)
    assert len(list(arcs(root, VERMILLION))) == back
    if name == "training":
        assert {f"runs {each.number}" for each in shown.stages} <= set(written)
        for arc in shown.arcs:
            assert format_bytes(arc.value_bytes + arc.gradient_bytes) in written
        assert {format_ns(each.time_ns) for each in shown.stages} <= set(written)


@pytest.mark.parametrize("name", PLANS)
def test_devices_have_their_numbers(name):
    shown = details(name)
    _, written = checked(devices_figure("x", shown).svg)
    if name == "two":
        for device in shown.devices:
            used = format_bytes(device.memory_bytes)
            assert {device.device, format_ns(device.load_ns)} <= set(written)
            assert f"{used} of {format_bytes(device.capacity_bytes)}" in written
    assert ("not used" in written) == (name in ("cyclic", "modular"))


def test_answers_have_means_counts_and_names_that_are_text():
    cases = [key("m", "a"), key("n", "a")]
    rows = [row("auto", 10, case=case, bound=10) for case in cases]
    rows += [row("greedy", 40, case=cases[0]), row("greedy", case=cases[1])]
    _, written = checked(dots_figure("x", *dots(rows)).svg)
    assert {"auto", "greedy", "2 of 2", "1 of 2", "4.000"} <= set(written)
    rows = [row(name, 5, case=key(name, name), bound=4) for name in HOSTILE[:7]]
    checked(dots_figure("x", *dots(rows)).svg)


def test_a_frontier_names_every_planner():
    def written(devices, exact, curves):
        sizes = (840_000, 900_000, 10**6, 1_200_000)
        return checked(
            frontier_figure("x", Frontier("m", "step", devices, sizes, exact, curves)).svg
        )[1]

    curves = {"auto": (16_520, 15_700, 14_730, 14_600), "all": (None, None, None, 14_600)}
    found = written("2 devices", "auto", {**curves, "selective": (None,) * 4})
    assert {"memory of each device (MB)", "step (us), 2 devices", "auto", "all"} <= set(found)
    assert "selective: nothing fits" in found
    written(HOSTILE[2], HOSTILE[0], dict.fromkeys(HOSTILE[:7], (5, 4, 3, 2)))


def picture(name="a", title="A title", text="$x^2$ \u0434 <b> & --> ]]>"):
    def paint(figure):
        axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        axes.plot([1, 2], [3, 4], marker="o")
        axes.text(1, 3, text)
        axes.axis("off")

    return Picture(name, title, 100, paint)


def test_text_stays_text_and_no_formula_is_made_of_it():
    assert "$x^2$ \u0434 <b> & --> ]]>" in checked(picture().svg)[1]
    for name in NASTY:
        root, _ = checked(picture(title=name, text="x").svg)
        assert root[0].text.isprintable()


def test_the_same_figure_has_the_same_bytes_and_two_have_no_identifier_in_common():
    first, second, other = picture(), picture(), picture("b")
    assert (first.svg, first.pdf) == (second.svg, second.pdf)
    assert first.pdf.startswith(b"%PDF") and b"/Type3" not in first.pdf
    assert b"CreationDate" not in first.pdf
    one, two = (
        {element.get("id") for element in checked(each.svg)[0].iter()} - {None}
        for each in (first, other)
    )
    assert one and not one & two


def test_a_page_says_what_paper_is():
    made = picture(text=PAPER)
    assert PAPER in made.svg and "var(--paper)" not in made.svg
    assert f"fill: {PAPER}" not in made.inline and "fill: var(--paper)" in made.inline
    # A name that reads like a colour stays.
    assert PAPER in checked(made.inline)[1]
