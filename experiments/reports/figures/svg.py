"""Drawings as SVG text: shapes, hatches, text that fits, axes.

Everything goes through ``xml.etree``, which escapes names; nothing here makes markup of text.
A drawing brings no script, style sheet or font, and the same calls give the same text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal
from xml.etree import ElementTree

from experiments.reports.figures.hatching import SPACING, Box, Hatch, hatch_path
from solver.model.text import printable

WIDTH: Final = 960
"""Of every figure, in pixels: readable in a window of 1280, and in print."""

INK: Final = "#1a1a1a"
MUTED: Final = "#555555"
RULE: Final = "#8c8c8c"
GRID: Final = "#e3e3e3"
BAND: Final = "#f4f4f4"
PAPER: Final = "#ffffff"

# Okabe and Ito, "Color universal design", 2008: told apart by all kinds of colour vision.
ORANGE: Final = "#e69f00"
SKY: Final = "#56b4e9"
GREEN: Final = "#009e73"
YELLOW: Final = "#f0e442"
BLUE: Final = "#0072b2"
VERMILLION: Final = "#d55e00"
PURPLE: Final = "#cc79a7"

Fill = str | Hatch
"""A colour, or lines on one."""

Direction = Literal["right", "down", "up"]
Anchor = Literal["start", "middle", "end"]

TIME_UNITS: Final = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
BYTE_UNITS: Final = (
    (10**12, "TB"),
    (10**9, "GB"),
    (10**6, "MB"),
    (10**3, "kB"),
    (1, "B"),
)

OBJECTIVE_UNITS: Final = {
    "bottleneck": TIME_UNITS,
    "latency": TIME_UNITS,
    "step": TIME_UNITS,
    "transfer": BYTE_UNITS,
    "peak_memory": ((10, "%"),),
}

_Attributes = dict[str, str | float]

_UNSAID: Final[_Attributes] = {
    "stroke": "none",
    "stroke_width": 1,
    "text_anchor": "start",
    "font_size": 12,
    "rx": 0,
}
"""What attributes are where they are left out."""

_FONT: Final = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_ELLIPSIS: Final = "\u2026"

# Widths of Helvetica in thousandths of the size; what is not listed is as wide as a digit.
_WIDTHS: Final = {
    char: width
    for chars, width in (
        ("ijl'|", 230),
        (" .,:;!/\\[]()ftI-`", 310),
        ('r"*{}', 380),
        ("cksvxyzJ", 500),
        ("_FTZL?", 610),
        ("ABEKPSVXY&+<>=~^", 670),
        ("CDHNRUw", 722),
        ("GOQ", 778),
        ("mM%", 890),
        ("W@" + _ELLIPSIS, 1000),
    )
    for char in chars
}
_DIGIT: Final = 556
_WIDE_FROM: Final = 0x1100
_BOLD: Final = 1.07


def text_width(text: str, size: float = 12, *, bold: bool = False) -> float:
    """Return about how many pixels a line of text takes; a little too many rather than too few."""
    widths = (_WIDTHS.get(char, 1000 if ord(char) >= _WIDE_FROM else _DIGIT) for char in text)
    return sum(widths) * size / 1000 * 1.03 * (_BOLD if bold else 1)


def shortened(text: str, width: float, size: float = 12, *, bold: bool = False) -> str:
    """Return `text`, or its beginning and end, as a line that takes at most `width` pixels.

    Characters that are not printable are escaped. The end of a long name tells as much as its
    beginning, so both stay.

    Examples
    --------
    >>> shortened("model.layers.17.mlp.down_proj.weight", 120, 10)
    'model.layer…proj.weight'
    """
    # What cannot fit anyhow need not be measured.
    line = printable(text[:4096])
    if text_width(line, size, bold=bold) <= width:
        return line
    low, high = 0, min(len(line), int(width) + 1)
    while low < high:
        kept = (low + high + 1) // 2
        candidate = line[: kept - kept // 2] + _ELLIPSIS + line[len(line) - kept // 2 :]
        if text_width(candidate, size, bold=bold) <= width:
            low = kept
        else:
            high = kept - 1
    return line[: low - low // 2] + _ELLIPSIS + line[len(line) - low // 2 :]


def mixed(colour: str, share: float) -> str:
    """Return `colour` mixed with white, of which it keeps 1 - `share`."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def ticks(most: float, count: int = 5) -> list[int]:
    """Return round numbers from 0 up to at most `most`, about `count` of them.

    Examples
    --------
    >>> ticks(1234)
    [0, 500, 1000]
    >>> ticks(0)
    [0]
    """
    if most < 1:
        return [0]
    step = 1
    for factor in itertools.cycle((2, 2.5, 2)):
        if most / step <= count:
            break
        step = int(step * factor)
    return list(range(0, int(most) + 1, step))


def axis_labels(values: Sequence[int], units: Sequence[tuple[int, str]]) -> list[str]:
    """Return round numbers in one unit, the largest that fits the last of them.

    Examples
    --------
    >>> axis_labels([0, 500_000, 1_000_000], TIME_UNITS)
    ['0', '0.5 ms', '1 ms']
    """
    size, unit = next((entry for entry in units if entry[0] <= max(values, default=0)), units[-1])
    return [f"{value / size:.10g} {unit}".rstrip() if value else "0" for value in values]


def number(value: float) -> str:
    """Return a coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


class Drawing:
    """An SVG image under construction.

    Parameters
    ----------
    title : str
        What it shows, in a few words; read aloud, and shown by the pointer.
    description : str
        What is to be seen, in a sentence or two, for who does not see it.
    height : float
        In pixels at a scale of 1.
    width : float
        In pixels at a scale of 1.
    """

    def __init__(self, title: str, description: str, height: float, width: float = WIDTH) -> None:
        self.width = width
        self._root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {number(width)} {number(height)}",
                "width": number(width),
                "height": number(height),
                "role": "img",
                "aria-label": printable(title),
                "font-family": _FONT,
                "font-size": "12",
                "fill": INK,
                "stroke-linejoin": "round",
            },
        )
        for tag, text in (("title", title), ("desc", description)):
            ElementTree.SubElement(self._root, tag).text = printable(text)
        self._add("rect", width="100%", height="100%", fill=PAPER)

    def __str__(self) -> str:
        """Return the image as text that can stand in a page or in a file of its own."""
        return ElementTree.tostring(self._root, encoding="unicode")

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: Fill,
        *,
        stroke: str = "none",
        tip: str = "",
        round_by: float = 0,
        stroke_width: float = 1,
    ) -> None:
        """Draw a rectangle; `tip` is shown by the pointer."""
        place = {"x": x, "y": y, "width": max(width, 0), "height": max(height, 0)}
        ground = fill.ground if isinstance(fill, Hatch) else fill
        self._add(
            "rect", tip, **place, fill=ground, rx=round_by, stroke=stroke, stroke_width=stroke_width
        )
        self._draw_hatch(fill, [(x, y, width, height)])

    def boxes(self, boxes: Sequence[Box], fill: Fill, *, stroke: str = "none") -> None:
        """Draw many rectangles as one path, with thin edges of colour `stroke`."""
        ground = fill.ground if isinstance(fill, Hatch) else fill
        self.path(box_path(boxes), fill=ground)
        self._draw_hatch(fill, boxes)
        if stroke != "none":
            self.path(box_path(boxes), stroke=stroke, width=0.6)

    def _draw_hatch(self, fill: Fill, boxes: Sequence[Box]) -> None:
        if not isinstance(fill, Hatch) or not (commands := hatch_path(fill.kind, boxes)):
            return
        dots: dict[str, str] = {}
        if fill.kind == "dots":
            dots = {"linecap": "round", "width": "1.6", "dasharray": f"0 {SPACING}"}
        # The pointer shows what is said of the rectangle below.
        self._add(
            "path",
            d=commands,
            fill="none",
            stroke=fill.ink,
            pointer_events="none",
            **{f"stroke_{name}": value for name, value in dots.items()},
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        stroke: str = INK,
        *,
        width: float = 1,
        dash: str = "",
    ) -> None:
        """Draw a straight line."""
        ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
        self._add("line", "", **ends, stroke=stroke, stroke_width=width, stroke_dasharray=dash)

    def path(
        self,
        commands: str,
        *,
        fill: str = "none",
        stroke: str = "none",
        width: float = 1,
        dash: str = "",
        tip: str = "",
    ) -> None:
        """Draw a path of SVG commands."""
        line: _Attributes = {"stroke": stroke, "stroke_width": width, "stroke_dasharray": dash}
        self._add("path", tip, d=commands, fill=fill, **line)

    def circle(self, x: float, y: float, radius: float, fill: str, stroke: str = "none") -> None:
        """Draw a disc."""
        self._add("circle", cx=x, cy=y, r=radius, fill=fill, stroke=stroke)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        anchor: Anchor = "start",
        fill: str = INK,
        bold: bool = False,
        width: float | None = None,
        halo: str = "none",
    ) -> None:
        """Write one line with its baseline at y, shortened to `width` pixels.

        The pointer shows what a shortened line leaves out. `halo` is a colour around the letters
        that keeps them apart from lines below.
        """
        line = printable(text) if width is None else shortened(text, width, size, bold=bold)
        behind: _Attributes = {"stroke": halo, "stroke_width": 3, "paint_order": "stroke"}
        element = self._add(
            "text",
            text if line != printable(text) else "",
            x=x,
            y=y,
            font_size=size,
            text_anchor=anchor,
            fill="" if fill == INK else fill,
            font_weight="bold" if bold else "",
            **(behind if halo != "none" else {}),
        )
        element.text = line

    def arrow(
        self,
        commands: str,
        end: tuple[float, float],
        towards: Direction,
        colour: str,
        *,
        dash: str = "",
        tip: str = "",
    ) -> None:
        """Draw a path with an arrow head at its end, which it reaches in a straight line."""
        self.path(commands, stroke=colour, width=1.5, dash=dash, tip=tip)
        x, y = map(number, end)
        head = {
            "right": f"M{x} {y}l-8 3.5v-7z",
            "down": f"M{x} {y}l-3.5 -8h7z",
            "up": f"M{x} {y}l-3.5 8h7z",
        }[towards]
        self.path(head, fill=colour)

    def legend(
        self, x: float, y: float, entries: Iterable[tuple[Fill, str]], *, size: float = 11
    ) -> float:
        """Write swatches of fills and what they mean in a row; return where it ends."""
        for fill, label in entries:
            self.rect(x, y - 9, 14, 11, fill, stroke=RULE, stroke_width=0.5)
            self.text(x + 19, y, label, size=size)
            x += 19 + text_width(label, size) + 18
        return x

    def _add(self, tag: str, tip: str = "", **attributes: str | float) -> ElementTree.Element:
        """Add a shape, without what goes without saying: pages have tens of thousands of them."""
        said = {
            name.replace("_", "-"): value if isinstance(value, str) else number(value)
            for name, value in attributes.items()
            if value not in ("", _UNSAID.get(name))
        }
        element = ElementTree.SubElement(self._root, tag, said)
        if tip:
            ElementTree.SubElement(element, "title").text = printable(tip)
        return element


def box_path(boxes: Iterable[Box]) -> str:
    """Return one path of many rectangles given as x, y, width, height."""
    return "".join(
        f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z"
        for x, y, width, height in boxes
    )


def stairs(points: Iterable[tuple[float, float]]) -> str:
    """Return the path of a line that keeps its height until the next point."""
    first, *others = [(number(x), number(y)) for x, y in points]
    return f"M{first[0]} {first[1]}" + "".join(f"H{x}V{y}" for x, y in others)


def scale(most: float, low: float, high: float) -> Callable[[float], float]:
    """Return the map of 0 .. `most` onto `low` .. `high`."""
    factor = (high - low) / most if most else 0.0
    return lambda value: low + value * factor
