"""The drawn answers: a dot for each plan, in a row for each planner."""

import itertools
import math
import re

import pytest

from experiments.reports.content.dots import dots
from experiments.reports.figures.dots import dots_figure
from tests.support.figure_checks import LINK, SVG, check_plain, parsed, texts
from tests.support.studies import HOSTILE, key, row


def drawn(*rows):
    (found,) = dots(rows)
    return dots_figure("x", found).svg


def marks(svg):
    """The places of all dots, those of a legend too."""
    uses = [use for use in parsed(svg).iter(f"{SVG}use") if use.get(LINK)]
    return [(float(use.get("x")), float(use.get("y"))) for use in uses]


def test_ratios_are_in_place_on_a_logarithmic_scale():
    rows = [row("auto", 10, case=key("m", "a"), bound=10)]
    rows += [row(f"p{n}", 10 * n, case=key("m", "a")) for n in (2, 4, 8)]
    svg = drawn(*rows)
    check_plain(svg)
    xs = [x for x, y in marks(svg) if y > 36]
    assert len(xs) == 4
    steps = [b - a for a, b in itertools.pairwise(xs)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.3)
    one = next(
        t for t in parsed(svg).iter(f"{SVG}text") if t.text == "1" and float(t.get("y")) > 90
    )
    assert float(one.get("x")) == pytest.approx(xs[0], abs=0.2)


def test_each_set_of_devices_has_a_mark_up_to_eight():
    def used(count):
        svg = drawn(*(row("auto", 5 + n, case=key("m", f"set {n}"), bound=5) for n in range(count)))
        written = [text for text in texts(svg) if text.startswith("set ")]
        hrefs = {use.get(LINK) for use in parsed(svg).iter(f"{SVG}use")}
        return len(written), len(hrefs)

    assert used(3) == (3, 3)
    assert used(8) == (8, 8)
    assert used(9) == (0, 1)


def test_means_and_counts_are_written():
    cases = [key("m", "a"), key("n", "a")]
    rows = [row("auto", 10, case=case, bound=10) for case in cases]
    rows += [row("greedy", 40, case=cases[0]), row("greedy", case=cases[1])]
    written = texts(drawn(*rows))
    assert {"auto", "greedy", "2 of 2", "1 of 2", "4.000"} <= set(written)


@pytest.mark.parametrize("most", [1, 1.004, 1.3, 3, 12, 900, 10**7])
def test_axes_have_a_few_round_numbers(most):
    svg = drawn(row("auto", 10**6, bound=10**6), row("greedy", int(most * 10**6)))
    numbers = [float(t) for t in texts(svg) if re.fullmatch(r"[\d.e+]+", t)]
    assert 1.0 in numbers and len(numbers) <= 20
    assert max(numbers) <= max(most, 1.01) * 1.001 + 1e-9
    assert all(math.isfinite(number) for number in numbers)


def test_names_are_text():
    svg = drawn(*(row(name, 5, case=key(name, name), bound=4) for name in HOSTILE[:7]))
    check_plain(svg)
    assert "<script" not in svg and "<img" not in svg
