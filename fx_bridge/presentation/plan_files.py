"""The files of a plan, in a form given by the ending of the name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fx_bridge.presentation.summary import result_html as result_html
from fx_bridge.presentation.summary import result_text as result_text
from solver.io.files import write_text_atomically
from solver.model.errors import PartitionError
from solver.model.text import shortened, shown

if TYPE_CHECKING:
    from fx_bridge.presentation.page import HandOver
    from solver.evaluation.result import SolveResult

Form = Literal["plan", "page"]


def form_of(path: str | os.PathLike[str]) -> Form:
    """Return the form of a file, by the ending of its name.

    It is the plan for names without an ending, and for special files such as ``/dev/stdout``.

    Raises PartitionError if the ending is unknown.

    Examples
    --------
    >>> form_of("plan.html"), form_of("plan.json"), form_of("plan")
    ('page', 'plan', 'plan')
    >>> form_of("plan.pdf")
    Traceback (most recent call last):
    solver.model.errors.PartitionError: plan.pdf ends in '.pdf'; write .json (the plan) or .html \
(a page)
    """
    if not isinstance(path, (str, os.PathLike)):
        raise PartitionError(
            f"path is {shown(path)}; write the name of a file, such as 'plan.json'"
        )
    name = Path(path).name.lower()
    if name.endswith((".json", ".html")):
        return "plan" if name.endswith(".json") else "page"
    ending = Path(name).suffix
    if ending and (Path(path).is_file() or not Path(path).exists()):
        raise PartitionError(
            f"{shortened(path)} ends in {ending!r}; write .json (the plan) or .html (a page)"
        )
    return "plan"


def plan_text(
    result: SolveResult,
    form: Form,
    *,
    title: str = "Plan",
    answer: str = "",
    command: str = "",
    hand_overs: Callable[[], Sequence[HandOver]] = tuple,
) -> str:
    """Return the text of a file for the plan of an answer.

    An infeasible plan can be shown, but not saved as a plan. The arguments from `title` on are
    those of :func:`fx_bridge.presentation.page.plan_page`, for a page; `hand_overs` is only called
    for one. Raises PartitionError if there is no plan.
    """
    plan, evaluation = result.plan, result.evaluation
    if plan is None or evaluation is None or (form == "plan" and not evaluation.feasible):
        raise PartitionError(
            f"there is no plan to write ({result.status.value}): {result.reason}; {result.remedy}"
        )
    if form == "page":
        from fx_bridge.presentation.page import plan_page

        return plan_page(
            result, title=title, answer=answer, command=command, hand_overs=hand_overs()
        )
    import json

    from solver.io.json_files import plan_to_json

    problem = evaluation.problem
    classes = {device.device_class for device in problem.devices}
    times_from = {name: said for name, said in problem.times_from.items() if name in classes}
    return json.dumps(plan_to_json(plan, times_from), indent=1) + "\n"


def save_plan_as(
    result: SolveResult,
    path: str | os.PathLike[str],
    *,
    title: str = "Plan",
    hand_overs: Callable[[], Sequence[HandOver]] = tuple,
) -> None:
    """Write the plan of an answer to a file, in the form of its ending.

    Raises PartitionError if there is no plan, the ending is unknown, or the file cannot be written.
    """
    form = form_of(path)
    write_text_atomically(path, plan_text(result, form, title=title, hand_overs=hand_overs))
