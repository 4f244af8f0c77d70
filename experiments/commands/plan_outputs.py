"""The files that ``plan`` and ``solve`` write: the plan, and a page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from experiments.commands.options import out_option
from experiments.console.command_line import command_text
from experiments.console.output import check_writable, say_written
from solver import PartitionError
from solver.io.files import write_files_atomically
from solver.model.text import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.presentation.page import HandOver
    from fx_bridge.presentation.plan_files import Form
    from solver import SolveResult


@dataclass(frozen=True, slots=True)
class PlanOutputOptions:
    """Files to write of a plan."""

    out: Annotated[
        list[str] | None,
        out_option(
            "FILE",
            "Save the plan: FILE.json for split, score and hand-over, FILE.html a page to look at. "
            "May be repeated.",
        ),
    ] = None

    def checked(self, *inputs: str | None) -> dict[str, Form]:
        """Return the form of each file, by path; refuse `inputs`, and unwritable files."""
        from fx_bridge.presentation.plan_files import form_of

        found: dict[str, Form] = {}
        named: set[str] = set()
        for path in self.out or ():
            check_writable(path, *inputs)
            found[path] = form_of(path)
            place = os.path.realpath(path)
            if place in named:
                raise PartitionError(
                    f"--out {shortened(path)} is written twice; write another name"
                )
            named.add(place)
        return found


@dataclass(frozen=True, slots=True)
class PlanOutputs:
    """Writer of the files of a plan: the form of each, by path.

    `model` is the name on the command line. Arguments for other programs need `captured`, which a
    problem without a model lacks.
    """

    forms: Mapping[str, Form]
    model: str
    captured: CapturedGraph | None = None

    def write(self, result: SolveResult) -> None:
        """Write all files, and report each."""
        from fx_bridge.presentation.plan_files import plan_text

        def arguments() -> Sequence[HandOver]:
            if self.captured is None or result.plan is None or result.evaluation is None:
                return ()
            from fx_bridge.interop.hand_overs import hand_overs

            return hand_overs(self.captured, result.plan, result.evaluation.problem)

        write_files_atomically(
            {
                path: plan_text(
                    result, form, title=self.model, command=command_text(), hand_overs=arguments
                )
                for path, form in self.forms.items()
            }
        )
        for path in self.forms:
            say_written(path)
