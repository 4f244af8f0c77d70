"""Arguments of engines, and values of objectives, as text and in JSON."""

from __future__ import annotations

import json
import math
import shlex
from fractions import Fraction
from typing import TYPE_CHECKING

from fx_bridge.presentation.tables import terminal_width
from solver.model.quantities import format_ns

if TYPE_CHECKING:
    from fx_bridge.interop.words import Words
    from solver.model.job import ServingObjective


def words_lines(words: Words) -> list[str]:
    """Return the arguments of an engine as lines of its command line, or of its settings."""
    width = terminal_width() or math.inf
    if not isinstance(words, list):
        text = json.dumps(words)
        return [text] if len(text) <= width else json.dumps(words, indent=1).split("\n")
    lines = [""]
    for word in map(shlex.quote, words):
        # Leave space for the line continuation, and for the indent of a table.
        if len(lines[-1]) + len(word) > width - 5:
            lines[-1] += "\\"
            lines.append("  ")
        lines[-1] += f"{word} "
    return [line.rstrip() for line in lines]


def value_text(objective: ServingObjective, value: float | Fraction) -> str:
    """Return the text of an objective's value, with its unit if it is a time."""
    if objective == "context":
        return "any" if value == math.inf else str(int(value))
    return f"{value:.1f}" if objective == "throughput" else format_ns(round(value))


def json_number(value: float | Fraction | None) -> float | str | None:
    """Return a number, or a string for infinity."""
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    return "any" if value == math.inf else value
