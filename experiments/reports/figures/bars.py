"""Bars of parts, one for each device: its load, and what is alive at its peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from experiments.reports.figures.hatching import Hatch
from experiments.reports.figures.svg import (
    BLUE,
    BYTE_UNITS,
    GREEN,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PURPLE,
    RULE,
    SKY,
    TIME_UNITS,
    VERMILLION,
    WIDTH,
    YELLOW,
    Drawing,
    Fill,
    axis_labels,
    mixed,
    scale,
    ticks,
)
from fx_bridge.presentation.alive import AliveKind
from fx_bridge.presentation.details import PlanDetails
from solver.model.quantities import format_bytes, format_ns

_LEFT: Final = 150
_RIGHT: Final = 90
_TOP: Final = 44
_ROW: Final = 30
_BAR: Final = 18

_LOADS: Final[Mapping[str, Fill]] = {
    "compute": mixed(BLUE, 0.25),
    "send": Hatch("rising", mixed(ORANGE, 0.35), INK),
    "receive": Hatch("dots", mixed(SKY, 0.6), INK),
}
_ALIVE: Final[Mapping[AliveKind, tuple[str, Fill]]] = {
    "weight": ("weights", Hatch("rising", mixed(BLUE, 0.6), mixed(BLUE, 0.25))),
    "received": ("received", Hatch("dots", mixed(SKY, 0.75), INK)),
    "value": ("values", mixed(SKY, 0.3)),
    "saved": ("saved for backward", Hatch("falling", mixed(GREEN, 0.55), mixed(GREEN, 0.1))),
    "earlier": ("of earlier microbatches", Hatch("grid", mixed(GREEN, 0.8), mixed(GREEN, 0.1))),
    "gradient": ("gradients", Hatch("flat", mixed(ORANGE, 0.5), mixed(ORANGE, 0))),
    "sent": ("sent or returned", Hatch("upright", mixed(PURPLE, 0.6), mixed(PURPLE, 0))),
    "workspace": ("workspace", mixed(YELLOW, 0.3)),
}


class _Bar(NamedTuple):
    """A device, how much its parts come to, and the size and the words of each part."""

    device: str
    total: str
    parts: Sequence[tuple[Fill, int, str]]


def load_figure(details: PlanDetails) -> str:
    """Return the loads as SVG: a bar for each device, and a line at the bottleneck.

    Where compute, send and receive overlap, the load is the longest of the three: they are drawn
    one below the other instead of end to end.
    """
    bars = [
        _Bar(
            entry.device,
            format_ns(entry.load_ns) if entry.operators else "not used",
            [
                (fill, time_ns, f"{what}s {format_ns(time_ns)}")
                for (what, fill), time_ns in zip(
                    _LOADS.items(), (entry.compute_ns, entry.send_ns, entry.receive_ns), strict=True
                )
            ],
        )
        for entry in details.devices
    ]
    most = format_ns(details.evaluation.bottleneck_ns)
    together = "at once" if details.overlap else "one after another"
    drawing = Drawing(
        "Load of every device",
        f"Time that each device computes, sends and receives, {together}; the bottleneck is "
        f"{most}. {_sentence(bars)}",
        _TOP + _ROW * len(bars) + 36,
    )
    drawing.legend(_LEFT, 14, [(fill, what) for what, fill in _LOADS.items()])
    _draw(drawing, bars, details.evaluation.bottleneck_ns, TIME_UNITS, overlap=details.overlap)
    end, bottom = WIDTH - _RIGHT, _TOP + _ROW * len(bars)
    drawing.line(end, _TOP - 8, end, bottom, VERMILLION, width=2, dash="6 3")
    drawing.text(end - 8, _TOP - 8, f"bottleneck {most}", size=11, anchor="end")
    drawing.text(WIDTH - 12, _TOP - 8, "load", size=11, anchor="end", fill=MUTED)
    return str(drawing)


def alive_figure(details: PlanDetails) -> str:
    """Return what is alive at the peaks as SVG: a bar of kinds for each device."""
    bars: list[_Bar] = []
    present: set[AliveKind] = set()
    for entry, alive in zip(details.devices, details.alive, strict=True):
        totals = dict.fromkeys(_ALIVE, 0)
        for item in alive:
            totals[item.kind] += item.size_bytes
        present |= {kind for kind, total in totals.items() if total}
        parts = [
            (fill, totals[kind], f"{words}: {format_bytes(totals[kind])}")
            for kind, (words, fill) in _ALIVE.items()
        ]
        held = format_bytes(entry.memory_bytes) if entry.operators else "not used"
        bars.append(_Bar(entry.device, held, parts))
    drawing = Drawing(
        "What is alive at the peak",
        "What each device holds when it holds most, by kind. " + _sentence(bars),
        _TOP + _ROW * len(bars) + 36,
    )
    drawing.legend(
        0, 14, [(fill, words) for kind, (words, fill) in _ALIVE.items() if kind in present]
    )
    most = max(entry.memory_bytes for entry in details.devices)
    _draw(drawing, bars, most, BYTE_UNITS)
    drawing.text(WIDTH - 12, _TOP - 8, "peak", size=11, anchor="end", fill=MUTED)
    return str(drawing)


def _sentence(bars: Sequence[_Bar]) -> str:
    return "; ".join(f"{bar.device}: {bar.total}" for bar in bars) + "."


def _draw(
    drawing: Drawing,
    bars: Sequence[_Bar],
    most: int,
    units: Sequence[tuple[int, str]],
    *,
    overlap: bool = False,
) -> None:
    """Draw axis and bars, their parts end to end or, where they overlap, one below the other."""
    at = scale(max(1, most), _LEFT, WIDTH - _RIGHT)
    bottom = _TOP + _ROW * len(bars)
    values = ticks(most, 6)
    for value, label in zip(values, axis_labels(values, units), strict=True):
        drawing.line(at(value), _TOP, at(value), bottom, GRID)
        drawing.text(at(value), bottom + 16, label, size=10, anchor="middle", fill=MUTED)
    for row, bar in enumerate(bars):
        y = _TOP + row * _ROW + (_ROW - _BAR) / 2
        drawing.text(_LEFT - 8, y + 13, bar.device, anchor="end", bold=True, width=_LEFT - 18)
        start, height = 0, _BAR / len(bar.parts) if overlap else _BAR
        for number, (fill, size, words) in enumerate(bar.parts):
            if not size:
                continue
            drawing.rect(
                at(start),
                y + number * height if overlap else y,
                at(size) - at(0),
                height,
                fill,
                stroke=PAPER,
                stroke_width=0.5,
                tip=f"{bar.device} {words}",
            )
            start += 0 if overlap else size
        fill = MUTED if bar.total == "not used" else INK
        drawing.text(WIDTH - 12, y + 13, bar.total, size=11, anchor="end", fill=fill)
    drawing.line(_LEFT, _TOP, _LEFT, bottom, RULE)
