"""What a person sees while a sweep runs: a bar with the time that is left, or plain lines."""

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
    """A bar on stderr on a terminal, and above it a line for every cell; else the lines alone."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            # Cells differ in time: the average of many says more than the last few.
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self._console,
            speed_estimate_period=3600,
        )
        self._task: TaskID | None = None
        self._total = 0
        self._done = 0

    def prepare(self, models: int) -> None:
        """Say how many models' problems are made now."""
        self._start("preparing", models, 0)

    def prepared(self, model: str) -> None:
        """Say that the problems of a model are made."""
        self._advance(f"{model}: prepared")

    def begin(self, cells: int, missing: int) -> None:
        """Say how many cells there are, and how many of them are to be done."""
        self._start("cells", cells, cells - missing)
        self._say(f"{counted(cells, 'cell')}, {cells - missing} of them done before")

    def done(self, row: PlannerRow) -> None:
        """Say what became of a cell."""
        case = row.case
        words = f"{case.model} on {case.device_set} devices, {','.join(case.objective)}, "
        self._advance(f"{words}{case.memory_model}: {row.outcome}")

    def _start(self, what: str, total: int, completed: int) -> None:
        self._total, self._done = total, completed
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=total, completed=completed)
        self._show(self._bar)

    def _advance(self, text: str) -> None:
        self._done += 1
        if self._task is not None:
            self._bar.advance(self._task)
        self._say(f"[{self._done}/{self._total}] {text}")
