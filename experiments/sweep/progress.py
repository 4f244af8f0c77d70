"""Progress display of a sweep."""

from __future__ import annotations

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from experiments.comparison.records import PlannerRow
from experiments.console.progress import LiveLines
from solver.model.quantities import counted


class SweepProgress(LiveLines):
    """A line on stderr for every cell, and on a terminal a bar with the remaining time."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            # Cells differ in time: average over many.
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self._console,
            speed_estimate_period=3600,
        )
        self._task: TaskID | None = None
        self._total = 0
        self._done = 0

    def prepare(self, models: int) -> None:
        """Begin the preparation of models."""
        self._start("preparing", models, 0)

    def prepared(self, model: str) -> None:
        """Report a prepared model."""
        self._advance(f"{model}: prepared")

    def begin(self, cells: int, missing: int) -> None:
        """Begin the cells, `missing` of which are to be answered."""
        self._start("cells", cells, cells - missing)
        self._say(f"{counted(cells, 'cell')}, {cells - missing} of them done before")

    def done(self, row: PlannerRow) -> None:
        """Report an answered cell."""
        self._advance(f"{row.case}: {row.outcome}")

    def _start(self, name: str, total: int, completed: int) -> None:
        self._total, self._done = total, completed
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total, completed=completed)
        self._show(self._bar)

    def _advance(self, text: str) -> None:
        self._done += 1
        if self._task is not None:
            self._bar.advance(self._task)
        self._say(f"[{self._done}/{self._total}] {text}")
