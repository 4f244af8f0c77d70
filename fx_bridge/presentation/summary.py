"""Answers of several solvers side by side, and the steps of a search, as plain text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

from fx_bridge.presentation.stage_picture import stage_picture
from solver.evaluation.evaluate import Evaluation
from solver.evaluation.result import SolveResult, SolveStatus, StepRecord
from solver.evaluation.usage import DeviceUsage
from solver.model.problem import PartitionProblem
from solver.model.quantities import (
    MISSING,
    aligned,
    format_bytes,
    format_gap,
    format_ns,
    format_value,
)
from solver.model.recomputation import recomputation_of
from solver.model.text import printable

STEP_HEADER: Final = ("step", "round", "from", "seconds", "incumbent", "bound")
"""What :func:`step_cells` returns of a step."""


def summary(problem: PartitionProblem, results: Sequence[SolveResult]) -> str:
    """Return a table, device by device, with each answer's objectives, bound and gap.

    Parameters
    ----------
    problem : PartitionProblem
        The one that all of `results` answer.
    results : sequence of SolveResult
        The baseline first; the last one is compared with it.

    Returns
    -------
    str
        Lines without a trailing newline.
    """
    devices = [(device.name, device.memory_bytes) for device in problem.devices]
    lines = _table(devices, problem.objective, results)
    lines += [line for result in results for line in _again(problem, result)]
    if len(results) > 1:
        lines += _gain(problem, results[0], results[-1])
    return "\n".join(lines)


def result_text(result: SolveResult) -> str:
    """Return the table of one answer, or one line with what to do where it has no plan."""
    if result.evaluation is None:
        return printable(f"{_sentence((), result)}; {result.remedy}")
    devices = [(usage.device, usage.capacity_bytes) for usage in result.evaluation.usage]
    return "\n".join(_table(devices, result.evaluation.objective_names, [result]))


def steps_text(log: Sequence[StepRecord]) -> str:
    """Return a table of what each step of a search took and gained, and their total.

    Parameters
    ----------
    log : sequence of StepRecord
        The log of a result. The steps of each objective stand under its name if there are
        several.

    Returns
    -------
    str
        Lines without a trailing newline.

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
    rows: list[Sequence[str]] = [STEP_HEADER]
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
    lines = aligned(rows)
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def step_cells(record: StepRecord) -> tuple[str, ...]:
    """Return a step as the cells of a table under `STEP_HEADER`; the objective is not in it."""
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
    """Return a value before and after, once where it did not change."""
    if before == after:
        return format_value(objective, after)
    return f"{format_value(objective, before)} -> {format_value(objective, after)}"


def result_html(text: str, evaluation: Evaluation | None) -> str:
    """Return the table of an answer, and a picture of its stages if it has a plan, as HTML."""
    picture = "" if evaluation is None else stage_picture(evaluation)
    return f"<pre>{html.escape(text, quote=False)}</pre>{picture}"


def _table(
    devices: Sequence[tuple[str, int | None]],
    objectives: Sequence[str],
    results: Sequence[SolveResult],
) -> list[str]:
    """Return the lines of a table of devices, by name and capacity, and a line for each answer."""
    header = [["", ""], ["device", "capacity"]]
    for result in results:
        header[0] += [result.solver, "", ""]
        header[1] += ["operators", "memory", "load"]
    rows = [
        [name, format_bytes(capacity_bytes)]
        + [cell for result in results for cell in _usage_cells(result, index)]
        for index, (name, capacity_bytes) in enumerate(devices)
    ]
    totals: list[list[str]] = []
    for level, name in enumerate(objectives):
        cells = [name, ""]
        for result in results:
            values = result.objective_values
            cells += ["", "", format_value(name, None if values is None else values[level])]
        totals.append(cells)
    lines = aligned([*header, *rows, *totals])
    rule = "-" * max(map(len, lines))
    lines.insert(len(header), rule)
    lines.insert(len(header) + 1 + len(rows), rule)
    return lines + [printable(_sentence(objectives, result)) for result in results]


def _usage_cells(result: SolveResult, index: int) -> list[str]:
    if result.evaluation is None:
        return [MISSING] * 3
    usage: DeviceUsage = result.evaluation.usage[index]
    if not usage.operators:
        return ["0", MISSING, MISSING]
    memory = format_bytes(usage.memory_bytes)
    if usage.capacity_bytes is not None:
        memory += f" ({usage.peak_memory_permille / 10:.1f} %)"
    operators = str(len(usage.operators))
    stages = sum(entry.stage.device == usage.device for entry in result.evaluation.stages)
    if stages > 1:
        operators += f" in {stages} stages"
    return [operators, memory, format_ns(usage.load_ns)]


def _sentence(objectives: Sequence[str], result: SolveResult) -> str:
    start = f"{result.solver}: {result.status.value}"
    if result.evaluation is not None and not result.evaluation.feasible:
        first, *others = result.evaluation.violations
        more = f"; and {len(others)} more" if others else ""
        return f"{result.solver}: its plan breaks limits: {first}{more}"
    if result.status in (SolveStatus.INFEASIBLE, SolveStatus.UNKNOWN):
        return f"{start} after {result.wall_time_s:.2f} s: {result.reason}"
    bound = ""
    if result.objective_bound is not None:
        bound = f", bound {format_value(objectives[0], result.objective_bound)}"
        bound += f", gap {format_gap(result.gap)}"
    return f"{start} in {result.wall_time_s:.2f} s{bound}"


def _again(problem: PartitionProblem, result: SolveResult) -> list[str]:
    """Say what runs again under a plan, what that takes, and what it saves."""
    recomputation = None if result.plan is None else recomputation_of(problem, result.plan)
    if result.plan is None or recomputation is None:
        return []
    time_ns = kept_bytes = 0
    for op, again, anchor in zip(
        problem.operators, recomputation.again, recomputation.anchor, strict=True
    ):
        device = problem.device_of[result.plan.assignment[op.name]]
        if again:
            time_ns += op.latency_on(device.device_class)
            kept_bytes += op.backward.saved_bytes - op.backward.again_bytes
        elif anchor:
            kept_bytes -= op.storage_bytes - op.backward.kept_bytes
    count = int(recomputation.again.sum())
    return [
        f"{result.solver}: {count} operators run again in {format_ns(time_ns)}; "
        f"{format_bytes(kept_bytes)} less kept of each microbatch"
    ]


def _gain(problem: PartitionProblem, baseline: SolveResult, result: SolveResult) -> list[str]:
    if baseline.objective is None or not result.objective:
        return []
    name = problem.objective[0]
    excess = baseline.objective / result.objective - 1
    if baseline.objective == result.objective:
        return [f"{baseline.solver} reaches the same {name}"]
    return [f"{baseline.solver}'s {name} is {excess:.1%} above {result.solver}'s"]
