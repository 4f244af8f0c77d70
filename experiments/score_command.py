"""The command ``score``: a plan that someone made, beside the proven optimum."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.commands import (
    read_limits,
    read_model,
    read_saved_problem,
    result_json,
    solve_all,
    with_stage_limits,
)
from experiments.exit_codes import EXIT_NO_PLAN
from experiments.options import (
    DEFAULT_LIMIT_S,
    ChunksOption,
    DeterministicOption,
    DevicesOption,
    JsonOption,
    KeepWholeOption,
    LimitOption,
    LinkOption,
    MaxDevicesOption,
    MemoryOption,
    ModelArgument,
    ObjectiveOption,
    SeedOption,
    WorkersOption,
)
from experiments.plan_files import FORMATS, ForeignPlan, check_format, read_foreign_plan
from solver import (
    PartitionError,
    PartitionProblem,
    SolveResult,
    SolveStatus,
    summary,
)
from solver.plan import check_assignment
from solver.problem import ObjectiveName
from solver.quantities import format_value, printable
from solver.result import judge

_SHOWN: tuple[ObjectiveName, ...] = ("transfer", "bottleneck", "latency", "peak_memory")
_GIVEN = "given"


def score(
    plan_file: Annotated[
        str,
        typer.Argument(
            metavar="PLAN.json",
            help="A plan of fxpartition, a device map of accelerate, a split specification of "
            "torch.distributed.pipelining, or tags of operators.",
        ),
    ],
    model: ModelArgument,
    devices: DevicesOption = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help=f"One of {', '.join(FORMATS)}; found out if left out."),
    ] = None,
    link: LinkOption = None,
    objective: ObjectiveOption = None,
    memory_model: MemoryOption = None,
    keep_whole: KeepWholeOption = None,
    chunks: ChunksOption = None,
    max_devices: MaxDevicesOption = None,
    time_limit: LimitOption = DEFAULT_LIMIT_S,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    deterministic: DeterministicOption = False,
    as_json: JsonOption = False,
) -> None:
    """Score a plan that someone made: memory, transfers, times, and its gap to the optimum."""
    from experiments.models import resolve_model
    from experiments.progress import ProgressLine

    limits = read_limits(time_limit, workers, seed, deterministic)
    asked = check_format(form)
    _check_file(plan_file)
    source = resolve_model(model)
    with ProgressLine(quiet=True) as progress:
        if isinstance(source, Path):
            if keep_whole:
                raise PartitionError(
                    f"{model} is a saved problem, which knows no modules; --keep-whole needs a "
                    "model"
                )
            captured = None
            problem = read_saved_problem(source, devices, link, objective, memory_model)
        else:
            captured, problem = read_model(
                source,
                devices,
                link,
                objective,
                memory_model,
                progress.step,
                keep_whole=keep_whole or (),
            )
        found = read_foreign_plan(plan_file, problem, captured, asked)
        rounds = 1 + max(found.plan.chunks.values(), default=0)
        if chunks is None and rounds > problem.chunks_per_device:
            note = (
                f"data comes to a device {rounds} times, so the optimum is that of plans with up "
                f"to {rounds} stages on each"
            )
            found = ForeignPlan(found.format, found.plan, (*found.notes, note))
            chunks = rounds
        problem = with_stage_limits(problem, chunks, max_devices)
        try:
            check_assignment(problem, found.plan.assignment)
        except PartitionError as error:
            raise PartitionError(f"{plan_file}: {error}") from None
        given = judge(_GIVEN, problem, found.plan, 0.0)
        (best,) = solve_all(problem, ("auto",), limits, model, progress)
    if as_json:
        print(json.dumps(_to_json(problem, found, given, best), indent=1))
    else:
        print(printable(f"{plan_file}, read as {found.format}"))
        for note in found.notes:
            print(printable(f"note: {note}"))
        print(summary(problem, (given, best)))
        for line in _values(given, best):
            print(printable(line))
        print(printable(_gap(problem, given, best).text))
    if given.objective is None:
        raise typer.Exit(EXIT_NO_PLAN)


def _check_file(path: str) -> None:
    """Refuse a file that is not there before a model is built."""
    if "\0" in path or not Path(path).is_file():
        raise PartitionError(f"there is no file {path}; write the path of a plan")


@dataclass(frozen=True, slots=True)
class _Gap:
    """How far a plan is above the best possible one, in its first objective that differs.

    `least` and `most` are parts of the best possible value, None where there is none.
    """

    objective: ObjectiveName
    least: float | None
    most: float | None
    text: str


def _gap(problem: PartitionProblem, given: SolveResult, best: SolveResult) -> _Gap:
    name = problem.objective[0]
    values = given.objective_values
    if values is None:
        return _Gap(name, None, None, "the plan breaks limits, so it has no gap to the optimum")
    if best.status is SolveStatus.OPTIMAL:
        assert best.objective_values is not None
        pairs = zip(problem.objective, values, best.objective_values, strict=True)
        name, value, least = next(
            (pair for pair in pairs if pair[1] != pair[2]), (name, values[0], values[0])
        )
        if value == least:
            return _Gap(name, 0.0, 0.0, "no plan is better: it is a proven optimum")
        where = f"{name} is {format_value(name, value)}"
        if least == 0:
            return _Gap(name, None, None, f"its {where}, the proven optimum is 0")
        excess = value / least - 1
        optimum = format_value(name, least)
        text = f"its {where}: {_percent(excess)} above the proven optimum, {optimum}"
        return _Gap(name, excess, excess, text)
    # A plan that someone made may be better than what the search found.
    known = values[0] if best.objective is None else min(values[0], best.objective)
    least_excess = values[0] / known - 1 if known else 0.0
    where = f"its {name} is {format_value(name, values[0])}"
    low = _percent(least_excess)
    if not best.objective_bound:
        text = f"{where}: at least {low} above the best possible; nothing is proven"
        return _Gap(name, least_excess, None, text)
    most_excess = values[0] / best.objective_bound - 1
    bound = format_value(name, best.objective_bound)
    text = (
        f"{where}: between {low} and {_percent(most_excess)} above the best possible (bound "
        f"{bound}); a longer --time-limit may tell"
    )
    return _Gap(name, least_excess, most_excess, text)


def _percent(part: float) -> str:
    return f"{part * 100:.2f} %"


def _values(given: SolveResult, best: SolveResult) -> list[str]:
    """Return what the plan and the best one cost in every respect."""
    lines = []
    for result in (given, best):
        if result.evaluation is not None:
            values = [
                f"{name.replace('_', ' ')} {format_value(name, result.evaluation.value(name))}"
                for name in _SHOWN
            ]
            lines.append(f"{result.solver}: {', '.join(values)}")
    return lines


def _to_json(
    problem: PartitionProblem, found: ForeignPlan, given: SolveResult, best: SolveResult
) -> dict[str, Any]:
    evaluation = given.evaluation
    assert evaluation is not None
    gap = _gap(problem, given, best)
    return {
        "format": found.format,
        "notes": list(found.notes),
        "feasible": evaluation.feasible,
        "violations": list(evaluation.violations),
        "values": {name: evaluation.value(name) for name in (*_SHOWN, *problem.objective)},
        "gap": {
            "objective": gap.objective,
            "least": gap.least,
            "most": gap.most,
            "proven": best.status is SolveStatus.OPTIMAL,
            "text": gap.text,
        },
        "devices": result_json(problem, given)["devices"],
        "chunks": dict(found.plan.chunks),
        "device_order": list(found.plan.device_order),
        "assignment": dict(found.plan.assignment),
        "best": result_json(problem, best),
    }
