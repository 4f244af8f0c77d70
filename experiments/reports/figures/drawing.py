"""Pictures by matplotlib, byte for byte reproducible: SVG with its text as text, and PDF.

Importing this module loads matplotlib.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from html import escape
from typing import Any, Final

from solver.model.text import printable

# Before the import, which warns if the home folder is not writable.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

from matplotlib import rc_context  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

WIDTH: Final = 760.0
"""Width of every figure, in points."""

INK, MUTED, GRID, PAPER = "#1b1b1b", "#5f5f5f", "#dcdcdc", "#fefefe"
BLUE, ORANGE, GREEN, VERMILLION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
SKY, PURPLE, YELLOW = "#56b4e9", "#cc79a7", "#f0e442"
PALETTE: Final = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW, MUTED)
"""Okabe and Ito's palette, safe for colour-blind readers."""
TIME_UNITS: Final = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
BYTE_UNITS: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
OBJECTIVE_UNITS: Final = {
    "bottleneck": TIME_UNITS,
    "latency": TIME_UNITS,
    "step": TIME_UNITS,
    "transfer": BYTE_UNITS,
    "peak_memory": ((10, "%"),),
}
_VARIABLES: Final = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--rule",
    PAPER: "--paper",
    BLUE: "--blue",
    GREEN: "--green",
}
"""CSS variables of the colours that differ in a dark page."""

_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    # Names may contain dollars.
    "text.parse_math": False,
    # Bundled with matplotlib, for the same layout everywhere.
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "path.simplify": True,
}
_FONTS: Final = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
_TAG: Final = re.compile(r"<[^>]*>")
_DECIMALS: Final = re.compile(r"(\d\.\d)\d+")
_UNTURNED: Final = re.compile(r' transform="rotate\(-0 [^"]*"')
_IDENTIFIER: Final = re.compile(r' id="([^"]*)"')
_DROPPED: Final = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>",
    re.DOTALL,
)


class Picture:
    """A figure of matplotlib.

    Parameters
    ----------
    name : str
        Name unique on a page, the salt of the SVG identifiers.
    title : str
        Contents in words, for screen readers.
    height : float
        Height in points.
    paint : callable
        Function that draws into an empty figure.
    """

    def __init__(
        self, name: str, title: str, height: float, paint: Callable[[Figure], None]
    ) -> None:
        self._name = name
        self._title = title
        self._height = height
        self._paint = paint

    @cached_property
    def svg(self) -> str:
        """The figure as SVG without scripts and links."""
        stream = io.StringIO()
        with self._painted() as figure:
            figure.savefig(stream, format="svg", metadata={"Date": None})
        return _tidy(stream.getvalue(), self._title)

    @cached_property
    def pdf(self) -> bytes:
        """The figure as PDF with its fonts, five times as slow as SVG."""
        stream = io.BytesIO()
        with self._painted() as figure:
            metadata = {"CreationDate": None, "Title": printable(self._title)}
            figure.savefig(stream, format="pdf", metadata=metadata)
        return stream.getvalue()

    @property
    def inline(self) -> str:
        """The SVG for a page that defines the colours by CSS."""
        return _TAG.sub(_with_variables, self.svg)

    @contextlib.contextmanager
    def _painted(self) -> Iterator[Figure]:
        with rc_context({**_STYLE, "svg.hashsalt": self._name}), warnings.catch_warnings():
            # Glyphs missing in the font; the SVG still has the text.
            warnings.simplefilter("ignore")
            figure = Figure(figsize=(WIDTH / 72, self._height / 72))
            self._paint(figure)
            yield figure


def _tidy(svg: str, title: str) -> str:
    """Add a title to an SVG of matplotlib, and drop its unused parts."""
    svg = re.sub(r"\s*\n\s*", " ", _DROPPED.sub("", svg)).replace("> <", "><").strip()
    used = set(re.findall(r"#([\w-]+)", "".join(_TAG.findall(svg))))

    def short(tag: re.Match[str]) -> str:
        text = _DECIMALS.sub(r"\1", _UNTURNED.sub("", tag[0]))
        text = text.replace("; font-family: 'DejaVu Sans'", "")
        return _IDENTIFIER.sub(lambda found: found[0] if found[1] in used else "", text)

    label = escape(printable(title))
    svg = _TAG.sub(short, svg).replace("<g/>", "")
    root = f'<svg role="img" aria-label="{label}" font-family="{_FONTS}" stroke-linejoin="round" '
    return svg.replace("<svg ", root, 1).replace(">", f"><title>{label}</title>", 1) + "\n"


def _with_variables(tag: re.Match[str]) -> str:
    text = tag[0]
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text


def write_beside(axes: Axes, row: float, x: float, text: str, **style: Any) -> None:
    """Write at the height of a row, at `x` in widths of the axes."""
    axes.text(x, row, text, transform=axes.get_yaxis_transform(), va="center", **style)


def short_text(text: str, most: int) -> str:
    """Shorten a text to at most `most` characters, its beginning and its end.

    Examples
    --------
    >>> short_text("model.layers.17.mlp.down_proj.weight", 20)
    'model.laye…oj.weight'
    """
    line = printable(text)
    if len(line) <= most:
        return line
    kept = most // 2
    return f"{line[:kept]}…{line[len(line) - (most - 1 - kept) :]}"


def unit_of(values: Sequence[float], units: Sequence[tuple[int, str]]) -> tuple[int, str]:
    """Return the largest unit not above the largest value."""
    most = max(values, default=0)
    return next((entry for entry in units if entry[0] <= most), units[-1])
