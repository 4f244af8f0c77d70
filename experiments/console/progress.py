"""Progress display: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from solver import Progress, SolveLimits
from solver.model.quantities import format_gap, format_value
from solver.model.text import printable

_REFRESH_S: Final = 0.1


class LiveLines:
    """Live content at the bottom of a terminal below plain lines; elsewhere plain lines alone."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, shown: RenderableType) -> None:
        if self._live is not None:
            self._live.update(shown)

    def _say(self, text: str) -> None:
        text = printable(text)
        if self._live is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._live.console.print(Text(text))


class ProgressLine(LiveLines):
    """A transient line on stderr: model, solver, incumbent, bound and gap.

    On anything but a terminal, only finished steps are printed, one plain line each.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__()
        self._quiet = quiet
        self._step = ""
        self._last_s = 0.0

    def __enter__(self) -> Self:
        return self if self._quiet else super().__enter__()

    def step(self, text: str) -> None:
        """Show the current step."""
        self._step = printable(text)
        self._show(Text(self._step, no_wrap=True, overflow="ellipsis"))

    def search(self, progress: Progress) -> None:
        """Show a moment of a search; solvers call it from their own threads."""
        if self._live is None:
            return
        now_s = time.monotonic()
        if now_s - self._last_s < _REFRESH_S:
            return
        self._last_s = now_s
        name = progress.objective_name
        gap = None
        if progress.incumbent and progress.bound is not None:
            gap = (progress.incumbent - progress.bound) / progress.incumbent
        self._show(
            Text(
                f"{self._step}  {name} {format_value(name, progress.incumbent)}  "
                f"bound {format_value(name, progress.bound)}  gap {format_gap(gap)}  "
                f"{progress.elapsed_s:.0f} s",
                no_wrap=True,
                overflow="ellipsis",
            )
        )

    def watched(self, limits: SolveLimits) -> SolveLimits:
        """Return `limits` with the progress of the search shown here."""
        return replace(limits, on_progress=self.search)

    def done(self, text: str) -> None:
        """Report a finished step."""
        if not self._quiet:
            self._say(text)
