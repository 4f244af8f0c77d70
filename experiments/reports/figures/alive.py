"""What is alive on every device at its peak: all of it by kind, and the largest by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from experiments.reports.content.details import DeviceDetails, PlanDetails
from experiments.reports.figures.hatching import Hatch
from experiments.reports.figures.svg import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    RULE,
    SKY,
    WIDTH,
    YELLOW,
    Drawing,
    Fill,
    mixed,
    scale,
    shortened,
    text_width,
)
from solver.evaluation.alive import AliveKind
from solver.model.quantities import counted, format_bytes

_NAMED: Final = 8
"""How many are named on each device; half as many where there are more than `_MANY` devices."""
_MANY: Final = 8
_COLUMNS: Final = 2
_GAP: Final = 30
_TOP: Final = 30
_HEADER: Final = 48
_ROW: Final = 17
_BAR: Final = 11
_NAME: Final = 196
_BARS: Final = 126
"""Width of the longest bar of something named."""

_WORDS: Final[Mapping[AliveKind, str]] = {
    "weight": "weights",
    "received": "received",
    "value": "values",
    "saved": "saved for backward",
    "earlier": "of earlier microbatches",
    "gradient": "gradients",
    "sent": "sent or returned",
    "workspace": "workspace",
}

_FILLS: Final[Mapping[AliveKind, Fill]] = {
    "weight": Hatch("rising", mixed(BLUE, 0.6), mixed(BLUE, 0.25)),
    "received": Hatch("dots", mixed(SKY, 0.75), INK),
    "value": mixed(SKY, 0.3),
    "saved": Hatch("falling", mixed(GREEN, 0.55), mixed(GREEN, 0.1)),
    "earlier": Hatch("grid", mixed(GREEN, 0.8), mixed(GREEN, 0.1)),
    "gradient": Hatch("flat", mixed(ORANGE, 0.5), mixed(ORANGE, 0)),
    "sent": Hatch("upright", mixed(PURPLE, 0.6), mixed(PURPLE, 0)),
    "workspace": mixed(YELLOW, 0.3),
}


def alive_figure(details: PlanDetails) -> str:
    """Return what is alive at the peaks as SVG: a panel for each device that is used."""
    devices = [entry for entry in details.devices if entry.operators]
    named = _NAMED if len(devices) <= _MANY else _NAMED // 2
    columns = min(_COLUMNS, len(devices))
    width = (WIDTH - _GAP * (_COLUMNS - 1)) / _COLUMNS
    panel_height = _HEADER + _ROW * (named + 1) + 18
    height = _TOP + panel_height * -(-len(devices) // columns)
    drawing = Drawing(
        "What is alive at the peak",
        "What each device holds when it holds most, by kind, and the largest by name. "
        + " ".join(_sentence(entry) for entry in devices),
        height,
    )
    present = {item.kind for entry in devices for item in entry.alive}
    drawing.legend(
        0, 14, [(_FILLS[kind], words) for kind, words in _WORDS.items() if kind in present]
    )
    most = max((item.size_bytes for entry in devices for item in entry.alive), default=1)
    at = scale(most, 0, _BARS)
    for index, entry in enumerate(devices):
        row, column = divmod(index, columns)
        x, y = column * (width + _GAP), _TOP + row * panel_height
        _draw_kinds(drawing, entry, (x, y, width))
        _draw_largest(drawing, entry, (x, y + _HEADER, width), named, at)
    return str(drawing)


def _by_kind(entry: DeviceDetails) -> dict[AliveKind, int]:
    totals = dict.fromkeys(_WORDS, 0)
    for item in entry.alive:
        totals[item.kind] += item.size_bytes
    return {kind: total for kind, total in totals.items() if total}


def _sentence(entry: DeviceDetails) -> str:
    parts = ", ".join(
        f"{_WORDS[kind]} {format_bytes(total)}" for kind, total in _by_kind(entry).items()
    )
    return f"{entry.device}: {parts or 'nothing'}."


def _draw_kinds(
    drawing: Drawing,
    entry: DeviceDetails,
    place: tuple[float, float, float],
) -> None:
    x, y, width = place
    # Of two long names neither displaces the number between them.
    device = shortened(entry.device, width * 0.45, bold=True)
    title = f"{device}: {format_bytes(entry.memory_bytes)} at "
    assert entry.peak_operator is not None
    operator = shortened(entry.peak_operator, width - text_width(title, bold=True), bold=True)
    drawing.text(x, y + 14, title + operator, bold=True)
    at = scale(max(1, entry.memory_bytes), 0, width)
    start = 0
    for kind, total in _by_kind(entry).items():
        drawing.rect(
            x + at(start),
            y + 21,
            at(total),
            16,
            _FILLS[kind],
            stroke=RULE,
            stroke_width=0.6,
            tip=f"{_WORDS[kind]}: {format_bytes(total)}",
        )
        start += total


def _draw_largest(
    drawing: Drawing,
    entry: DeviceDetails,
    place: tuple[float, float, float],
    named: int,
    at: Callable[[float], float],
) -> None:
    x, y, width = place
    for row, item in enumerate(entry.alive[:named]):
        base = y + row * _ROW + 11
        drawing.text(x + _NAME - 6, base, item.name, size=10, anchor="end", width=_NAME - 6)
        bar = at(item.size_bytes)
        drawing.rect(
            x + _NAME, base - 9, bar, _BAR, _FILLS[item.kind], stroke=RULE, stroke_width=0.6
        )
        size = format_bytes(item.size_bytes)
        drawing.text(x + _NAME + bar + 5, base, size, size=10)
        drawing.text(
            x + _NAME + bar + 5 + text_width(size, 10) + 5, base, item.kind, size=10, fill=MUTED
        )
    others = entry.alive[named:]
    if others:
        total = sum(item.size_bytes for item in others)
        base = y + named * _ROW + 11
        drawing.text(
            x + _NAME - 6, base, counted(len(others), "other"), size=10, anchor="end", fill=MUTED
        )
        drawing.text(
            x + _NAME, base, f"{format_bytes(total)} in all", size=10, fill=MUTED, width=width
        )
