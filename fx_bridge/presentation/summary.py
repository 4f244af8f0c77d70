"""Answers of solvers, and the steps of a search, as plain text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

from fx_bridge.presentation.modules import ModuleTree
from fx_bridge.presentation.stage_picture import stage_picture
from fx_bridge.presentation.tables import names_width, table_lines, wrapped
from solver.evaluation.result import SolveResult, StepRecord
from solver.model.problem import PartitionProblem
from solver.model.quantities import (
    MISSING,
    counted,
    format_bytes,
    format_gap,
    format_ns,
    format_value,
)
from solver.model.recomputation import Recomputation
from solver.model.text import printable

STEP_HEADER: Final = ("step", "round", "from", "seconds", "incumbent", "bound")
"""Column names of :func:`step_cells`."""


def summary(results: Sequence[SolveResult]) -> str:
    """Return the last of some answers to a problem, and the others in comparison.

    The plan of the last one is shown device by device, with the modules of each. There is no
    trailing newline.
    """
    *others, asked = results
    lines = [_sentence(asked), *_again(asked)]
    for other in others:
        lines += [_sentence(other, asked), *_again(other)]
    if asked.evaluation is not None and (origin := times_line(asked.evaluation.problem)):
        lines.append(origin)
    return "\n".join([*_plan_lines(asked), *wrapped(map(printable, lines), "  ")])


def times_line(problem: PartitionProblem, *others: str) -> str:
    """Return the origin of the times of `problem` in one line, or nothing if it has none.

    `others` are classes besides those of its devices, such as that of a host.
    """
    classes = dict.fromkeys([*(device.device_class for device in problem.devices), *others])
    named: dict[str, list[str]] = {}
    for name in classes:
        if name in problem.times_from:
            named.setdefault(problem.times_from[name], []).append(name)
    return "; ".join(
        f"{'' if number else 'times: '}{' and '.join(names)} from {origin}"
        for number, (origin, names) in enumerate(named.items())
    )


def result_text(result: SolveResult) -> str:
    """Return the :func:`summary` of one answer, or the remedy if it has no plan."""
    if result.evaluation is None:
        return printable(f"{_sentence(result)}; {result.remedy}")
    return summary([result])


def steps_text(log: Sequence[StepRecord]) -> str:
    """Return a table of the times and gains of the steps of a search, with their total.

    With several objectives, the steps of each follow its name. There is no trailing newline.

    Examples
    --------
    >>> print(steps_text([StepRecord("chain", 1, 0.0, 0.25, "latency", None, 4000, 0, 1500)]))
    step   round  from  seconds  incumbent           bound
    ------------------------------------------------------
    chain      1  0.00     0.25  - -> 4 us  0 ns -> 1.5 us
    ------------------------------------------------------
    total                  0.25  - -> 4 us  0 ns -> 1.5 us
    """
    if not log:
        return "the search took no steps"
    names = list(dict.fromkeys(record.objective_name for record in log))
    rows: list[Sequence[str]] = []
    above = names[0] if len(names) == 1 else ""
    for record in log:
        if record.objective_name != above:
            above = record.objective_name
            rows.append((f"{above}:", *[""] * (len(STEP_HEADER) - 1)))
        rows.append(step_cells(record))
    seconds = f"{sum(record.seconds for record in log):.2f}"
    first, last = log[0], log[-1]
    gained = ("", "")
    if len(names) == 1:
        gained = (
            _change(names[0], first.incumbent_before, last.incumbent_after),
            _change(names[0], first.bound_before, last.bound_after),
        )
    rows.append(("total", "", "", seconds, *gained))
    return "\n".join(table_lines(STEP_HEADER, rows, rules=[len(rows) - 1]))


def step_cells(record: StepRecord) -> tuple[str, ...]:
    """Return the cells of a step under `STEP_HEADER`."""
    name = record.objective_name
    return (
        record.step,
        str(record.round),
        f"{record.start_s:.2f}",
        f"{record.seconds:.2f}",
        _change(name, record.incumbent_before, record.incumbent_after),
        _change(name, record.bound_before, record.bound_after),
    )


def _change(objective: str, before: int | None, after: int | None) -> str:
    """Return a value before and after, or once if it did not change."""
    if before == after:
        return format_value(objective, after)
    return f"{format_value(objective, before)} -> {format_value(objective, after)}"


def result_html(text: str, result: SolveResult) -> str:
    """Return the text of an answer, and a picture of its stages if it has a plan, as HTML."""
    picture = ""
    if result.evaluation is not None and result.plan is not None:
        picture = stage_picture(result.evaluation, result.plan)
    return f"<pre>{html.escape(text, quote=False)}</pre>{picture}"


def _plan_lines(result: SolveResult) -> list[str]:
    """Return a plan device by device, each followed by the modules of its stages."""
    if result.evaluation is None or result.plan is None:
        return []
    stages = result.plan.stages
    several = bool(stages[-1].chunk)
    label = f"stage {len(stages)}: " if several else ""
    words = ModuleTree.of(result.evaluation.problem).stages(result.plan, names_width() - len(label))
    rows, below = [], []
    for usage in result.evaluation.usage:
        own = [number for number, stage in enumerate(stages) if stage.device == usage.device]
        names = [f"stage {number}: {words[number]}" if several else words[number] for number in own]
        memory = format_bytes(usage.memory_bytes)
        if usage.capacity_bytes is not None:
            memory += f" ({usage.peak_memory_permille / 10:.1f} %)"
        used = [f"{len(usage.operators):,}", memory, format_ns(usage.load_ns)]
        unused = ["0", MISSING, MISSING]
        rows.append([usage.device, format_bytes(usage.capacity_bytes), *(used if own else unused)])
        below.append(names)
    return table_lines(
        ["device", "capacity", "operators", "memory", "load"], rows, below=below, rules=[len(rows)]
    )


def _sentence(result: SolveResult, asked: SolveResult | None = None) -> str:
    """Return an answer in one line, in comparison with `asked`."""
    evaluation = result.evaluation
    if evaluation is None:
        status = result.status.value
        return f"{result.solver}: {status} after {result.wall_time_s:.2f} s: {result.reason}"
    if not evaluation.feasible:
        first, *others = evaluation.violations
        more = f"; and {len(others)} more" if others else ""
        return f"{result.solver}: its plan breaks limits: {first}{more}"
    pairs = zip(evaluation.objective_names, evaluation.objective, strict=True)
    parts = [f"{name.replace('_', ' ')} {format_value(name, value)}" for name, value in pairs]
    best = None if asked is None else asked.objective_values
    if best == evaluation.objective:
        parts[-1] += " (the same)"
    elif best is not None:
        differ = [a != b for a, b in zip(evaluation.objective, best, strict=True)].index(True)
        value, least = evaluation.objective[differ], best[differ]
        if least:
            excess = format_gap(abs(value / least - 1))
            parts[differ] += f" ({excess} {'more' if value > least else 'less'})"
    time = f" in {result.wall_time_s:.2f} s" if result.wall_time_s else ""
    parts.append(result.status.value + time)
    if result.objective_bound is not None:
        bound = format_value(evaluation.objective_names[0], result.objective_bound)
        parts += [f"bound {bound}", f"gap {format_gap(result.gap)}"]
    return f"{result.solver}: {', '.join(parts)}"


def _again(result: SolveResult) -> list[str]:
    """Return a line on the recomputation of a plan, its time and the memory it saves, if any."""
    plan = result.plan
    if result.evaluation is None or plan is None or not plan.recomputed:
        return []
    problem = result.evaluation.problem
    recomputation = Recomputation(problem, plan.stage_index, plan.recomputed)
    time_ns = kept_bytes = 0
    for op, again, anchor in zip(
        problem.operators, recomputation.again, recomputation.anchor, strict=True
    ):
        device = problem.device_of[plan.assignment[op.name]]
        if again:
            time_ns += op.latency_on(device.device_class)
            kept_bytes += op.backward.saved_bytes - op.backward.again_bytes
        elif anchor:
            kept_bytes -= op.storage_bytes - op.backward.kept_bytes
    count = int(recomputation.again.sum())
    return [
        f"{result.solver}: {counted(count, 'operator')} run again in {format_ns(time_ns)}; "
        f"{format_bytes(kept_bytes)} less kept of each microbatch"
    ]
