"""The command ``score``: a given plan beside the proven optimum."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

from experiments.commands.answers import result_json, solve_all
from experiments.commands.option_groups import with_option_groups
from experiments.commands.option_reading import check_given, read_limits, read_request
from experiments.commands.options import JsonOption, ModelArgument, ProblemOptions, SearchOptions
from experiments.console.exit_codes import EXIT_NO_PLAN
from experiments.console.output import print_json, print_lines, say_note
from experiments.problems.plan_files import FORMATS, ForeignPlan, PlanFormat, read_foreign_plan
from experiments.problems.request import read_problem
from fx_bridge.presentation.summary import result_text
from solver import PartitionError, PartitionProblem, SolveResult, SolveStatus
from solver.evaluation.result import judge
from solver.model.plan import check_assignment
from solver.model.problem_fields import ObjectiveName
from solver.model.quantities import format_value
from solver.model.recomputation import with_regions
from solver.model.text import shortened

_SHOWN: tuple[ObjectiveName, ...] = ("transfer", "bottleneck", "latency", "peak_memory")
_GIVEN = "given"

_PlanArgument = Annotated[
    str,
    typer.Argument(
        metavar="PLAN.json",
        help="A plan of fxpartition, a device map of accelerate, a split specification of "
        "torch.distributed.pipelining, or tags of operators; with --format of an engine its words, "
        "such as 16,32, or a file with them.",
    ),
]
_FormatOption = Annotated[
    PlanFormat | None,
    typer.Option(
        "--format", help="What the file is, found out if left out; or the engine whose words it is."
    ),
]


@with_option_groups
def score(
    plan_file: _PlanArgument,
    model: ModelArgument,
    problem: ProblemOptions,
    search: SearchOptions,
    form: _FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score a plan that someone made: memory, transfers, times, and its gap to the optimum.

    For example, a device map of accelerate:

        fxpartition score map.json gpt2 --devices 3x300MB

    Or the words that someone gives to vLLM:

        fxpartition score --format vllm 3,5,4 gpt2 --devices 3x300MB

    The exit code is 1 if the plan breaks limits.
    """
    from experiments.console.progress import ProgressLine

    check_given(plan_file, "PLAN.json", "plan.json")
    limits = read_limits(search)
    # Before a model is built.
    if (form is None or form in FORMATS) and not os.path.exists(plan_file):  # noqa: PTH110
        raise PartitionError(f"there is no file {shortened(plan_file)}; write the path of a plan")
    request = read_request(problem)
    with ProgressLine(quiet=True) as progress:
        captured, scored = read_problem(model, request, progress.step)
        say_note(captured)
        found = read_foreign_plan(plan_file, scored.devices, captured, form)
        if not request.recompute.regions:
            scored = with_regions(scored, found.plan)
        rounds = 1 + max(found.plan.chunks.values(), default=0)
        if request.pipeline.chunks_per_device is None and rounds > scored.chunks_per_device:
            note = (
                f"data comes to a device {rounds} times, so the optimum is that of plans with up "
                f"to {rounds} stages on each"
            )
            found = replace(found, notes=(*found.notes, note))
            scored = scored.replace(chunks_per_device=rounds)
        try:
            check_assignment(scored, found.plan.assignment)
        except PartitionError as error:
            raise PartitionError(f"{plan_file}: {error}") from None
        given = judge(_GIVEN, scored, found.plan, 0.0)
        (best,) = solve_all(scored, (search.solver,), limits, model, progress)
    if as_json:
        print_json(_to_json(scored, found, given, best))
    else:
        assert given.evaluation is not None
        print_lines(
            [
                f"{plan_file}, read as {found.format}",
                *(f"note: {note}" for note in found.notes),
                *result_text(given).splitlines(),
                "",
                *result_text(best).splitlines(),
                "",
                *(f"broken: {violation}" for violation in given.evaluation.violations),
                *_values(given, best),
                _gap(scored, given, best).text,
            ]
        )
    if given.objective is None:
        raise typer.Exit(EXIT_NO_PLAN)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Gap of a plan to the best possible one, in the first objective that differs.

    `least` and `most` are relative to the best possible value; None if unknown.
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
    # The given plan may be better than the best found one.
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
    """Return a line of costs for the plan, and one for the best plan."""
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
    proven = best.status is SolveStatus.OPTIMAL
    return {
        "format": found.format,
        "notes": list(found.notes),
        "feasible": evaluation.feasible,
        "violations": list(evaluation.violations),
        "values": {name: evaluation.value(name) for name in (*_SHOWN, *problem.objective)},
        "gap": {**asdict(_gap(problem, given, best)), "proven": proven},
        "devices": result_json(problem, given)["devices"],
        "chunks": dict(found.plan.chunks),
        "recomputed": sorted(found.plan.recomputed),
        "region_starts": list(found.plan.region_starts),
        "device_order": list(found.plan.device_order),
        "assignment": dict(found.plan.assignment),
        "best": result_json(problem, best),
    }
