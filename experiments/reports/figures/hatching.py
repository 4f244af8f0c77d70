"""Hatches of rectangles as plain lines.

SVG has patterns for this, but they need identifiers, which meet in a page, and browsers print
them as pictures, each many times larger than its lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

HatchKind = Literal["rising", "falling", "dots", "flat", "upright", "grid"]

SPACING: Final = 6
"""Distance of lines along the axes, in pixels."""

Box = tuple[float, float, float, float]
"""Left, top, width and height."""


class Hatch(NamedTuple):
    """Lines or dots of colour `ink` on `ground`."""

    kind: HatchKind
    ground: str
    ink: str


def hatch_path(kind: HatchKind, boxes: Iterable[Box]) -> str:
    """Return the SVG path of the lines inside of `boxes`, which dashes of no length make dots.

    All boxes have the lines of one endless hatch, so that those of neighbours meet.

    Examples
    --------
    >>> hatch_path("flat", [(1, 0, 10, 15)])
    'M1 6H11M1 12H11'
    """
    return "".join(command for box in boxes for command in _COMMANDS[kind](*box))


def _multiples(low: float, high: float, step: float = SPACING) -> Iterator[float]:
    """Return the multiples of `step` between two numbers, neither of them included."""
    for index in range(math.floor(low / step) + 1, math.ceil(high / step)):
        yield index * step


def _rising(x: float, y: float, width: float, height: float) -> Iterator[str]:
    for total in _multiples(x + y, x + width + y + height):
        start, end = max(x, total - y - height), min(x + width, total - y)
        yield f"M{_short(start)} {_short(total - start)}L{_short(end)} {_short(total - end)}"


def _falling(x: float, y: float, width: float, height: float) -> Iterator[str]:
    for shift in _multiples(x - y - height, x + width - y):
        start, end = max(x, shift + y), min(x + width, shift + y + height)
        yield f"M{_short(start)} {_short(start - shift)}L{_short(end)} {_short(end - shift)}"


def _flat(x: float, y: float, width: float, height: float) -> Iterator[str]:
    for at in _multiples(y, y + height):
        yield f"M{_short(x)} {_short(at)}H{_short(x + width)}"


def _upright(x: float, y: float, width: float, height: float) -> Iterator[str]:
    for at in _multiples(x, x + width):
        yield f"M{_short(at)} {_short(y)}V{_short(y + height)}"


def _grid(x: float, y: float, width: float, height: float) -> Iterator[str]:
    yield from _flat(x, y, width, height)
    yield from _upright(x, y, width, height)


def _dots(x: float, y: float, width: float, height: float) -> Iterator[str]:
    """Rows half as far apart as lines, every other one shifted."""
    for row in _multiples(y + 1, y + height - 1, SPACING / 2):
        shift = SPACING / 2 if row % SPACING else 0
        if dots := [*_multiples(x + 1 - shift, x + width - 1 - shift)]:
            yield f"M{_short(dots[0] + shift)} {_short(row)}H{_short(dots[-1] + shift)}"


_COMMANDS: Final = {
    "rising": _rising,
    "falling": _falling,
    "flat": _flat,
    "upright": _upright,
    "grid": _grid,
    "dots": _dots,
}


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
