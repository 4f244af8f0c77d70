"""The drawn pipeline: boxes where passes are, told by their number."""

import re

import pytest

from experiments.reports.figures.pipeline import pipeline_figure
from fx_bridge.presentation.details import plan_details
from tests.support.figure_checks import SVG, parsed, texts
from tests.support.report_plans import PLANS, chain, details


def rectangles(svg, height):
    """All boxes of so many pixels in height: left, top and width."""
    found = []
    for path in parsed(svg).iter(f"{SVG}path"):
        if path.get("fill") == "none":
            continue
        for box in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h", path.get("d")):
            x, y, width, tall = map(float, box)
            if tall == height:
                found.append((x, y, width))
    return found


def axis(svg):
    """Where time begins, and where the step ends: at the dashed line."""
    upright = [line for line in parsed(svg).iter(f"{SVG}line") if line.get("x1") == line.get("x2")]
    end = next(line for line in upright if line.get("stroke-dasharray"))
    return min(float(line.get("x1")) for line in upright), float(end.get("x1"))


@pytest.mark.parametrize("name", PLANS)
def test_every_pass_is_a_box_at_its_time(name):
    pipeline = details(name).pipeline
    drawn = sorted(rectangles(pipeline_figure(details(name)), 20), key=lambda box: (box[1], box[0]))
    passes = sorted(
        (span for span in pipeline.spans if span.kind == "compute"),
        key=lambda span: (span.rank, span.start_ns),
    )
    assert len(drawn) == len(passes)
    if not pipeline.shown_ns:
        return
    left, end = axis(pipeline_figure(details(name)))
    pixels = (end - left) / pipeline.shown_ns
    for (x, _, width), span in zip(drawn, passes, strict=True):
        assert x == pytest.approx(left + span.start_ns * pixels, abs=0.02)
        assert width == pytest.approx(max(0.6, (span.end_ns - span.start_ns) * pixels), abs=0.02)


def test_transfers_are_in_the_strip_below():
    shown = details("training")
    moved = [span for span in shown.pipeline.spans if span.kind != "compute"]
    assert len(rectangles(pipeline_figure(shown), 3.5)) == len(moved)


def test_boxes_carry_the_numbers_of_microbatches():
    written = texts(pipeline_figure(details("training")))
    for number in range(8):
        # Forward and backward, on four devices.
        assert written.count(str(number)) >= 8


def test_it_says_what_is_drawn():
    def words(name):
        return texts(pipeline_figure(details(name)))[0]

    assert words("training").startswith("1F1B, 8 microbatches, forward and backward: a step takes ")
    assert "was not made for a pipeline" in words("two") and words("two").startswith("GPipe, 4 ")
    assert "was not made" not in words("overlap")
    assert "Drawn: a step of 18," in words("many microbatches")
    assert "all devices work in turn" in words("cyclic")


def test_bubbles_are_written_for_each_device():
    shown = details("training")
    written = texts(pipeline_figure(shown))
    assert all(f"{share * 100:.1f} %" in written for share in shown.pipeline.idle_shares)


def test_chunks_have_fills_of_their_own():
    svg = pipeline_figure(details("interleaved"))
    fills = {
        path.get("fill")
        for path in parsed(svg).iter(f"{SVG}path")
        if re.search(r"v20h", path.get("d")) and path.get("fill") != "none"
    }
    # Forward and backward, two chunks.
    assert len(fills) == 4
    assert {"forward, chunk 0", "backward, chunk 0", "1"} <= set(texts(svg))


def test_a_pass_too_short_for_its_number_is_still_seen():
    svg = pipeline_figure(plan_details(*chain(30, 3, microbatches=16, objective="step")))
    assert all(width >= 0.6 for _, _, width in rectangles(svg, 20))
