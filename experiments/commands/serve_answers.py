"""Output of ``serve``: the plan for one objective, or a table of the plans for all."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import typer

from experiments.commands.answers import diagnosis_json
from experiments.commands.serve_host import hosted_modules, hosted_rows, why_no_plan
from experiments.console.command_line import command_text
from experiments.console.exit_codes import EXIT_NO_PLAN, EXIT_TIME_OUT
from experiments.console.output import print_json, print_lines, say_written
from fx_bridge.presentation.modules import ModuleTree
from fx_bridge.presentation.summary import steps_text, times_line
from fx_bridge.presentation.tables import names_width, table_lines, terminal_width, wrapped
from solver import PartitionProblem, SolveLimits, SolveStatus, save_plan
from solver.io.files import write_text_atomically
from solver.model.quantities import format_bytes, format_ns

if TYPE_CHECKING:
    from experiments.commands.serve_given import ScoredWords
    from experiments.commands.serve_rules import HostedRulesTable, RulesTable
    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.choices import ExpertsRead
    from fx_bridge.interop.words import Words
    from fx_bridge.serving.plan import ServingPlan
    from solver.model.job import ServingObjective

_COLUMNS = (
    *("objective", "tokens that fit", "first token", "token", "request", "tokens/s", "proof"),
)


@dataclass(frozen=True, slots=True)
class Searched:
    """Settings of the search, and of printing its steps."""

    limits: SolveLimits
    solver: str
    without: tuple[str, ...]
    with_steps: bool


def tell_plan(
    found: ServingPlan,
    table: RulesTable | HostedRulesTable | None,
    given: ScoredWords | None,
    engine: str | None,
    searched: Searched,
    *,
    as_json: bool,
) -> None:
    """Print the answer for one objective, and exit by its status."""
    why = None
    if found.solved.status is SolveStatus.INFEASIBLE:
        why = found.diagnose(searched.limits.after(found.solved.wall_time_s))
    if as_json:
        answer = _json(found, engine)
        if why is not None:
            answer["diagnosis"] = diagnosis_json(why)
        answer |= {} if given is None else {"given": given.json()}
        print_json({**answer, **({} if table is None else {"rules": table.json()})})
    else:
        lines = _lines(found, engine)
        if searched.with_steps:
            lines += ["", *steps_text(found.solved.log).split("\n")]
        lines += [] if why is None else wrapped([why.text])
        lines += () if given is None else given.lines()
        print_lines([*lines, *(() if table is None else table.lines())])
    _exit([found])


def _times_lines(found: ServingPlan) -> list[str]:
    """Return the origin of the times of the devices and the host."""
    job = found.asked
    host = () if job.host is None or job.host.device_class is None else (job.host.device_class,)
    line = times_line(next(iter(job.phases.values())), *host)
    return wrapped([line], "  ") if line else []


def _baseline_lines(found: ServingPlan) -> list[str]:
    """Return the line of the greedy heuristic beside a plan."""
    if found.solved.objective is None:
        return []
    value = found.baseline.objective
    text = "no plan" if value is None else _value_text(found.objective, value)
    return [f"greedy: {text}"]


def write_plan(
    found: ServingPlan,
    whole: CapturedGraph | None,
    path: str | None,
    model: str,
    engine: str | None,
) -> None:
    """Write the plan of a model, or a page of it, by the suffix of `path`.

    Nothing is written without a path or a plan.
    """
    if path is None or whole is None or found.solved.plan is None:
        return
    from fx_bridge.interop.hand_overs import hand_overs
    from fx_bridge.presentation.plan_files import form_of, plan_text

    plan, form = found.plan_of_model(whole), form_of(path)
    if form == "plan":
        save_plan(plan, path)
    else:
        call = found.fullest_call
        text = plan_text(
            call,
            form,
            title=f"{model}: a call of {call.solver}",
            answer="\n".join(_lines(found, engine)),
            command=command_text(),
            hand_overs=lambda: hand_overs(whole, plan),
        )
        write_text_atomically(path, text)
    say_written(path)


def tell_plans(plans: Sequence[ServingPlan], engine: str | None, *, as_json: bool) -> None:
    """Print the answers for several objectives, and exit by their status."""
    if as_json:
        print_json({found.objective: _json(found, engine) for found in plans})
    else:
        print_lines(_table(plans, engine))
    _exit(plans)


def _exit(plans: Sequence[ServingPlan]) -> None:
    """Exit with an error code if no objective has a plan."""
    if all(found.solved.plan is None for found in plans):
        is_proven = any(found.solved.status is SolveStatus.INFEASIBLE for found in plans)
        raise typer.Exit(EXIT_NO_PLAN if is_proven else EXIT_TIME_OUT)


def _json(found: ServingPlan, engine: str | None) -> dict[str, Any]:
    """Return the answer as plain data."""
    from fx_bridge.serving.hosted import HostedPlan

    solved = found.solved
    answer: dict[str, Any] = {
        "objective": found.objective,
        "status": solved.status.value,
        "value": _number(solved.objective),
        "bound": _number(solved.objective_bound),
        "gap": solved.gap,
        "wall_time_s": solved.wall_time_s,
        "solver": solved.solver,
        "log": [asdict(step) for step in solved.log],
    }
    if solved.plan is None or solved.evaluation is None:
        return {**answer, "reason": _why_no_plan(found)}
    metrics, plan = found.metrics, solved.plan
    is_hosted = isinstance(found, HostedPlan)
    if engine is not None:
        answer |= {"words": found.words(engine)}
    return {
        **answer,
        **({"modes": found.counts} if isinstance(found, HostedPlan) else {}),
        "baseline": None if is_hosted else _number(found.baseline.objective),
        "batch": found.request.batch,
        "context": found.context,
        "experts_read": found.experts_read,
        "tokens": _number(found.most_tokens),
        "request_ns": _number(metrics.request_ns),
        "first_token_ns": _number(metrics.first_token_ns),
        "token_ns": _number(metrics.token_ns),
        "groups": metrics.groups,
        "tokens_per_s": metrics.tokens_per_s,
        "device_order": list(plan.device_order),
        "layers": found.layers,
        "memory_bytes": found.memory_bytes,
        "assignment": dict(plan.assignment),
        "mode_of": dict(plan.mode_of),
    }


def _number(value: float | Fraction | None) -> float | str | None:
    """Return a number, or a string for infinity."""
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    return "any" if value == math.inf else value


def _why_no_plan(found: ServingPlan) -> str:
    from fx_bridge.serving.hosted import HostedPlan

    return why_no_plan(found) if isinstance(found, HostedPlan) else found.solved.reason


def _lines(found: ServingPlan, engine: str | None) -> list[str]:
    """Return the answer as lines of text."""
    from fx_bridge.serving.hosted import HostedPlan

    solved = found.solved
    if solved.evaluation is None:
        why = _why_no_plan(found) or "no plan found"
        return [f"{found.objective}: {solved.status.value}; {why}"]
    is_hosted = isinstance(found, HostedPlan)
    beside = [] if is_hosted else _baseline_lines(found)
    return [
        *(hosted_rows(found) if isinstance(found, HostedPlan) else _device_lines(found)),
        *_metrics_lines(found),
        *experts_lines(found.experts_read),
        f"{found.objective}: {_proof(found)} in {solved.wall_time_s:.2f} s",
        *beside,
        *([] if engine is None else words_lines(found.words(engine))),
        *_times_lines(found),
    ]


def _device_lines(found: ServingPlan) -> list[str]:
    """Return the devices of a plan as lines of text."""
    held, problem = found.memory_bytes, _problem(found)
    modules = ModuleTree.of(problem).stages(found.plan, names_width())
    rows = [
        (
            device,
            format_bytes(problem.device_of[device].memory_bytes),
            format_bytes(held[device]),
            str(len(layers)),
        )
        for device, layers in found.layers.items()
    ]
    header = ("device", "usable", "memory", "layers")
    return table_lines(header, rows, below=[[words] for words in modules])


def _metrics_lines(found: ServingPlan) -> list[str]:
    """Return tokens and times of a plan as lines of text."""
    metrics = found.metrics
    return [
        f"tokens that fit: {_number(found.most_tokens) or 'not known'}",
        f"first token: {format_ns(round(metrics.first_token_ns))}",
        f"each token after it: {format_ns(round(metrics.token_ns))}",
        f"request: {format_ns(round(metrics.request_ns))}",
        f"tokens in a second, {metrics.groups} x {found.request.batch} sequences in turns: "
        f"{metrics.tokens_per_s:.1f}",
    ]


def _problem(found: ServingPlan) -> PartitionProblem:
    """Return the problem of one phase; all phases have the same modules."""
    return next(iter(found.job.phases.values()))


def words_lines(words: Words) -> list[str]:
    """Return the arguments of an engine as lines of its command line, or of its settings."""
    width = terminal_width() or math.inf
    if not isinstance(words, list):
        text = json.dumps(words)
        return [text] if len(text) <= width else json.dumps(words, indent=1).split("\n")
    lines = [""]
    for word in map(shlex.quote, words):
        # Leave space for the line continuation, and for the indent of a table.
        if len(lines[-1]) + len(word) > width - 5:
            lines[-1] += "\\"
            lines.append("  ")
        lines[-1] += f"{word} "
    return [line.rstrip() for line in lines]


def experts_lines(read: ExpertsRead | None) -> list[str]:
    """Return a line on the experts read per step in the times, if the model has experts."""
    texts = {
        "average": "as many as tokens choose on average",
        "most": "as many as tokens can choose at most",
        "all": "all",
    }
    return [] if read is None else [f"experts read: {texts[read]}"]


def _row(found: ServingPlan) -> tuple[str, ...]:
    """Return the table row of a plan."""
    if found.solved.evaluation is None:
        return (found.objective, *("-",) * 5, found.solved.status.value)
    metrics = found.metrics
    return (
        found.objective,
        str(_number(found.most_tokens) or "-"),
        format_ns(round(metrics.first_token_ns)),
        format_ns(round(metrics.token_ns)),
        format_ns(round(metrics.request_ns)),
        f"{metrics.tokens_per_s:.1f}",
        _proof(found),
    )


def _table(plans: Sequence[ServingPlan], engine: str | None) -> list[str]:
    """Return a row for each objective, with the long values of its plan below."""
    from fx_bridge.serving.hosted import HostedPlan

    below = []
    for found in plans:
        if found.solved.plan is None:
            below.append([found.solved.reason or "no plan found"])
            continue
        if isinstance(found, HostedPlan):
            details = hosted_modules(found)
        else:
            details = ModuleTree.of(_problem(found)).stage_lines(found.plan)
        details += () if engine is None else words_lines(found.words(engine))
        below.append(details)
    lines = table_lines(_COLUMNS, [*map(_row, plans)], text=["proof"], below=below)
    return lines + experts_lines(plans[0].experts_read)


def _proof(found: ServingPlan) -> str:
    solved = found.solved
    if solved.status is SolveStatus.OPTIMAL:
        return "proven optimal"
    if solved.objective_bound is None or solved.gap is None:
        return "no bound"
    bound = _value_text(found.objective, solved.objective_bound)
    return f"bound {bound}, gap {100 * solved.gap:.2f} %"


def _value_text(objective: ServingObjective, value: float | Fraction) -> str:
    """Return the text of an objective's value, with its unit if it is a time."""
    if objective == "context":
        return "any" if value == math.inf else str(int(value))
    return f"{value:.1f}" if objective == "throughput" else format_ns(round(value))
