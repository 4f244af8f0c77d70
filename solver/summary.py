"""Answers of several solvers side by side, as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from solver.evaluate import DeviceUsage
from solver.problem import PartitionProblem
from solver.quantities import (
    MISSING,
    aligned,
    format_bytes,
    format_gap,
    format_ns,
    format_value,
    printable,
)
from solver.result import SolveResult, SolveStatus


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
    header = [["", ""], ["device", "capacity"]]
    for result in results:
        header[0] += [result.solver, "", ""]
        header[1] += ["operators", "memory", "load"]
    rows = [
        [device.name, format_bytes(device.memory_bytes)]
        + [cell for result in results for cell in _usage_cells(result, index)]
        for index, device in enumerate(problem.devices)
    ]
    totals: list[list[str]] = []
    for level, name in enumerate(problem.objective):
        cells = [name, ""]
        for result in results:
            values = result.objective_values
            cells += ["", "", format_value(name, None if values is None else values[level])]
        totals.append(cells)
    lines = aligned([*header, *rows, *totals])
    rule = "-" * max(map(len, lines))
    lines.insert(len(header), rule)
    lines.insert(len(header) + 1 + len(rows), rule)
    lines += [printable(_sentence(problem, result)) for result in results]
    if len(results) > 1:
        lines += _gain(problem, results[0], results[-1])
    return "\n".join(lines)


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


def _sentence(problem: PartitionProblem, result: SolveResult) -> str:
    start = f"{result.solver}: {result.status.value}"
    if result.plan is not None and result.objective is None:
        return f"{result.solver}: its plan breaks limits: {result.reason}"
    if result.status in (SolveStatus.INFEASIBLE, SolveStatus.UNKNOWN):
        return f"{start} after {result.wall_time_s:.2f} s: {result.reason}"
    bound = ""
    if result.objective_bound is not None:
        name = problem.objective[0]
        bound = f", bound {format_value(name, result.objective_bound)}"
        bound += f", gap {format_gap(result.gap)}"
    return f"{start} in {result.wall_time_s:.2f} s{bound}"


def _gain(problem: PartitionProblem, baseline: SolveResult, result: SolveResult) -> list[str]:
    if baseline.objective is None or not result.objective:
        return []
    name = problem.objective[0]
    excess = baseline.objective / result.objective - 1
    if baseline.objective == result.objective:
        return [f"{baseline.solver} reaches the same {name}"]
    return [f"{baseline.solver}'s {name} is {excess:.1%} above {result.solver}'s"]
