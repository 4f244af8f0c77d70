"""Output of ``serve``: the plan for one objective, or a table of the plans for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import typer
from typing_extensions import TypeIs

from experiments.commands.answers import diagnosis_json
from experiments.commands.gguf_answers import gguf_json, gguf_remedy, gguf_rows, gguf_scope
from experiments.commands.serve_host import hosted_modules, hosted_rows, why_no_plan
from experiments.commands.serve_words import json_number, value_text, words_lines
from experiments.console.command_line import command_text
from experiments.console.exit_codes import EXIT_NO_PLAN, EXIT_TIME_OUT
from experiments.console.output import print_json, print_lines, say_written
from fx_bridge.presentation.modules import ModuleTree
from fx_bridge.presentation.summary import steps_text, times_line
from fx_bridge.presentation.tables import names_width, table_lines, wrapped
from solver import PartitionProblem, SolveLimits, SolveStatus, save_plan
from solver.io.files import write_text_atomically
from solver.model.quantities import format_bytes, format_ns

if TYPE_CHECKING:
    from experiments.commands.serve_given import ScoredWords
    from experiments.commands.serve_rules import RulesTable
    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.choices import ExpertsRead
    from fx_bridge.serving.gguf_plan import GgufPlan
    from fx_bridge.serving.hosted import HostedPlan
    from fx_bridge.serving.plan import ServingPlan

Answer: TypeAlias = "ServingPlan | GgufPlan"
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
    found: Answer,
    table: RulesTable | None,
    given: ScoredWords | None,
    engine: str | None,
    searched: Searched,
    *,
    as_json: bool,
) -> None:
    """Print the answer for one objective, and exit by its status."""
    why = None
    if found.solved.status is SolveStatus.INFEASIBLE and not _is_of_file(found):
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


def _times_lines(found: Answer) -> list[str]:
    """Return the origin of the times of the devices and the host."""
    job = found.asked
    if not _is_timed(found):
        return []
    host = () if job.host is None or job.host.device_class is None else (job.host.device_class,)
    line = times_line(next(iter(job.phases.values())), *host)
    return wrapped([line], "  ") if line else []


def _baseline_lines(found: ServingPlan) -> list[str]:
    """Return the line of the greedy heuristic beside a plan."""
    if found.solved.objective is None:
        return []
    value = found.baseline.objective
    text = "no plan" if value is None else value_text(found.objective, value)
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
    from fx_bridge.presentation.host_page import host_page
    from fx_bridge.presentation.page import plan_page
    from fx_bridge.presentation.plan_files import form_of

    plan, form = found.plan_of_model(whole), form_of(path)
    if form == "plan":
        save_plan(plan, path)
    else:
        shown = {"answer": "\n".join(_lines(found, engine)), "command": command_text()}
        words = hand_overs(whole, plan)
        if _is_hosted(found):
            cost, log = found.evaluation, found.solved.log
            text = host_page(cost, found.plan, log, title=model, hand_overs=words, **shown)
        else:
            call = found.fullest_call
            title = f"{model}: a call of {call.solver}"
            text = plan_page(call, title=title, hand_overs=words, **shown)
        write_text_atomically(path, text)
    say_written(path)


def tell_plans(plans: Sequence[ServingPlan], engine: str | None, *, as_json: bool) -> None:
    """Print the answers for several objectives, and exit by their status."""
    if as_json:
        print_json({found.objective: _json(found, engine) for found in plans})
    else:
        print_lines(_table(plans, engine))
    _exit(plans)


def _exit(plans: Sequence[Answer]) -> None:
    """Exit with an error code if no objective has a plan."""
    if all(found.solved.plan is None for found in plans):
        is_proven = any(found.solved.status is SolveStatus.INFEASIBLE for found in plans)
        raise typer.Exit(EXIT_NO_PLAN if is_proven else EXIT_TIME_OUT)


def _is_of_file(found: Answer) -> TypeIs[GgufPlan]:
    from fx_bridge.serving.gguf_plan import GgufPlan

    return isinstance(found, GgufPlan)


def _is_hosted(found: ServingPlan) -> TypeIs[HostedPlan]:
    from fx_bridge.serving.hosted import HostedPlan

    return isinstance(found, HostedPlan)


def _is_timed(found: Answer) -> bool:
    """Return False if the speeds of devices are not known."""
    return not _is_of_file(found) or found.jobs.is_timed


def _json(found: Answer, engine: str | None) -> dict[str, Any]:
    solved = found.solved
    answer: dict[str, Any] = {
        "objective": found.objective,
        "status": solved.status.value,
        "value": json_number(solved.objective),
        "bound": json_number(solved.objective_bound),
        "gap": solved.gap,
        "wall_time_s": solved.wall_time_s,
        "solver": solved.solver,
        "log": [asdict(step) for step in solved.log],
    }
    if solved.plan is None or solved.evaluation is None:
        return {**answer, "reason": _why_no_plan(found)}
    metrics, plan = found.metrics, solved.plan
    baseline = None
    if _is_of_file(found):
        answer |= gguf_json(found)
    else:
        baseline = json_number(found.baseline.objective)
        answer |= {"modes": found.counts} if _is_hosted(found) else {}
        answer |= {} if engine is None else {"words": found.words(engine)}
    times = {
        name: json_number(getattr(metrics, name)) if _is_timed(found) else None
        for name in ("request_ns", "first_token_ns", "token_ns", "tokens_per_s")
    }
    return {
        **answer,
        "baseline": baseline,
        "batch": found.request.batch,
        "context": found.context,
        "experts_read": found.experts_read,
        "tokens": json_number(found.most_tokens),
        **times,
        "groups": metrics.groups,
        "device_order": list(plan.device_order),
        "layers": found.layers,
        "memory_bytes": found.memory_bytes,
        "assignment": dict(plan.assignment),
        "mode_of": dict(plan.mode_of),
    }


def _why_no_plan(found: Answer) -> str:
    if _is_of_file(found):
        return why_no_plan(found) + gguf_remedy(found)
    if _is_hosted(found):
        return why_no_plan(found)
    return found.solved.reason


def _lines(found: Answer, engine: str | None) -> list[str]:
    solved = found.solved
    if solved.evaluation is None:
        why = _why_no_plan(found) or "no plan found"
        return [f"{found.objective}: {solved.status.value}; {why}"]
    rows, beside, words, scope = [], [], [], ""
    if _is_of_file(found):
        rows, scope = gguf_rows(found), gguf_scope(found)
    else:
        words = [] if engine is None else words_lines(found.words(engine))
        rows = hosted_rows(found) if _is_hosted(found) else _device_lines(found)
        beside = _baseline_lines(found)
        rows.append(f"tokens that fit: {json_number(found.most_tokens) or 'not known'}")
    return [
        *rows,
        *(_metrics_lines(found) if _is_timed(found) else ()),
        *experts_lines(found.experts_read),
        f"{found.objective}: {_proof(found)}{scope} in {solved.wall_time_s:.2f} s",
        *beside,
        *words,
        *_times_lines(found),
    ]


def _device_lines(found: ServingPlan) -> list[str]:
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


def _metrics_lines(found: Answer) -> list[str]:
    metrics = found.metrics
    return [
        f"first token: {format_ns(round(metrics.first_token_ns))}",
        f"each token after it: {format_ns(round(metrics.token_ns))}",
        f"request: {format_ns(round(metrics.request_ns))}",
        f"tokens in a second, {metrics.groups} x {found.request.batch} sequences in turns: "
        f"{metrics.tokens_per_s:.1f}",
    ]


def _problem(found: ServingPlan) -> PartitionProblem:
    """Return the problem of one phase; all phases have the same modules."""
    return next(iter(found.job.phases.values()))


def experts_lines(read: ExpertsRead | None) -> list[str]:
    """Return a line on the experts read per step in the times, if the model has experts."""
    texts = {
        "average": "as many as tokens choose on average",
        "most": "as many as tokens can choose at most",
        "all": "all",
    }
    return [] if read is None else [f"experts read: {texts[read]}"]


def _row(found: ServingPlan) -> tuple[str, ...]:
    if found.solved.evaluation is None:
        return (found.objective, *("-",) * 5, found.solved.status.value)
    metrics = found.metrics
    return (
        found.objective,
        str(json_number(found.most_tokens) or "-"),
        format_ns(round(metrics.first_token_ns)),
        format_ns(round(metrics.token_ns)),
        format_ns(round(metrics.request_ns)),
        f"{metrics.tokens_per_s:.1f}",
        _proof(found),
    )


def _table(plans: Sequence[ServingPlan], engine: str | None) -> list[str]:
    """Return a row for each objective, with the long values of its plan below."""
    below = []
    for found in plans:
        if found.solved.plan is None:
            below.append([_why_no_plan(found) or "no plan found"])
            continue
        if _is_hosted(found):
            details = hosted_modules(found)
        else:
            details = ModuleTree.of(_problem(found)).stage_lines(found.plan)
        details += () if engine is None else words_lines(found.words(engine))
        below.append(details)
    lines = table_lines(_COLUMNS, [*map(_row, plans)], text=["proof"], below=below)
    return lines + experts_lines(plans[0].experts_read)


def _proof(found: Answer) -> str:
    solved = found.solved
    if solved.status is SolveStatus.OPTIMAL:
        return "proven optimal"
    if solved.objective_bound is None or solved.gap is None:
        return "no bound"
    bound = value_text(found.objective, solved.objective_bound)
    return f"bound {bound}, gap {100 * solved.gap:.2f} %"
