"""Output of ``serve`` for a model in a GGUF file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer

from experiments.console.exit_codes import EXIT_NO_PLAN, EXIT_TIME_OUT
from experiments.console.output import print_json, print_lines, say_written
from fx_bridge.interop.llama_cpp import SINCE
from fx_bridge.presentation.summary import times_line
from fx_bridge.presentation.tables import table_lines, wrapped
from solver import PartitionPlan, SolveStatus, save_plan
from solver.model.quantities import format_bytes, format_gap, format_ns

if TYPE_CHECKING:
    from experiments.planners.gguf_rules import RuleAnswer
    from fx_bridge.serving.gguf_plan import DeviceUse, GgufPlan
    from fx_bridge.serving.host_words import HostWords

_USES: Final = ("device", "layers", "weights", "cache", "buffer", "free")
_RULES: Final = ("llama.cpp's rule", "context", "token", "tokens/s", "plan is better")
_NONE: Final = "-"


def tell_gguf(
    found: GgufPlan,
    flags: Sequence[str],
    words: str | None,
    out: str | None,
    *,
    is_timed: bool,
    as_json: bool,
) -> None:
    """Print the answer, write the plan, and exit by the status.

    Parameters
    ----------
    flags : sequence of str
        Arguments of the line besides those of the plan.
    words : str or None
        Arguments of a person, scored beside the plan.
    is_timed : bool
        False if speeds are not known.
    """
    from experiments.planners.gguf_rules import answers_of_gguf_rules

    given = None if words is None else found.words_model.read(words)
    rules = answers_of_gguf_rules(found)
    if as_json:
        print_json(_json(found, flags, given, rules, is_timed=is_timed))
    else:
        lines = _lines(found, flags, is_timed=is_timed)
        lines += [] if given is None or words is None else _given_lines(found, words, given)
        print_lines([*lines, *_rule_lines(found, rules, is_timed=is_timed)])
    if found.plan is None:
        is_proven = found.status is SolveStatus.INFEASIBLE
        raise typer.Exit(EXIT_NO_PLAN if is_proven else EXIT_TIME_OUT)
    if out is not None:
        save_plan(found.plan, out)
        say_written(out)


def _json(
    found: GgufPlan,
    flags: Sequence[str],
    given: HostWords | None,
    rules: Sequence[RuleAnswer],
    *,
    is_timed: bool,
) -> dict[str, Any]:
    """Return the answer as plain data."""
    answer: dict[str, Any] = {
        "objective": found.objective,
        "status": found.status.value,
        "bound": None if found.bound is None else float(found.bound),
        "wall_time_s": found.wall_time_s,
        "context": found.context,
        "rules": [
            {
                "rule": rule.name,
                "context": rule.context,
                "token_ns": rule.metrics and float(rule.metrics.token_ns),
                "violations": list(rule.evaluation.violations),
            }
            for rule in rules
        ],
    }
    if found.plan is None:
        return {**answer, "reason": _why_no_plan(found)}
    metrics = found.metrics(found.plan)
    names = ("first_token_ns", "token_ns", "request_ns", "tokens_per_s")
    times = {name: float(getattr(metrics, name)) for name in names}
    answer |= {
        "words": [*found.line(found.plan), *flags],
        "since": SINCE,
        **(times if is_timed else {}),
        "devices": [asdict(use) for use in found.uses(found.plan)],
        "host_bytes": found.judged(found.plan).host_bytes,
    }
    if given is not None:
        value = given.evaluation.value_ns
        answer["given"] = {
            "value": None if value is None else float(value),
            "violations": list(given.evaluation.violations),
            "notes": list(given.notes),
        }
    return answer


def _lines(found: GgufPlan, flags: Sequence[str], *, is_timed: bool) -> list[str]:
    """Return the answer as lines of text."""
    if found.plan is None:
        return [f"{found.objective}: {found.status.value}; {_why_no_plan(found)}"]
    plan = found.plan
    uses = found.uses(plan)
    rows = [
        (
            *(use.device, _layers(use)),
            *map(
                format_bytes,
                (use.weight_bytes, use.cache_bytes, use.buffer_bytes, use.free_bytes),
            ),
        )
        for use in uses
    ]
    lines = [
        shlex.join([*found.line(plan), *flags]),
        f"for builds of llama.cpp since {SINCE}",
        *table_lines(_USES, rows, text=["layers"]),
        f"host: {_host(found, uses)}, {format_bytes(found.judged(plan).host_bytes)}",
        f"context: {found.context} tokens{_beyond(found)}",
        *(_times(found, plan) if is_timed else ()),
        f"{found.objective}: {_proof(found)}",
    ]
    if is_timed:
        problem = found.job.phases[found.job.token_phase]
        host = found.job.host
        others = () if found.jobs.host is None or host is None else (host.device_class or "",)
        lines += wrapped([times_line(problem, *others)], "  ")
    return lines


def _times(found: GgufPlan, plan: PartitionPlan) -> list[str]:
    metrics, request = found.metrics(plan), found.jobs.request
    return [
        f"first token: {format_ns(round(metrics.first_token_ns))}, of a prompt of {request.prompt}",
        f"each token: {format_ns(round(metrics.token_ns))}, {metrics.tokens_per_s:.1f} in a second",
        f"request: {format_ns(round(metrics.request_ns))}",
    ]


def _beyond(found: GgufPlan) -> str:
    trained = found.jobs.model.longest_context
    return f"; the model was trained for {trained}" if found.context > trained else ""


def _proof(found: GgufPlan) -> str:
    """Return the proof of a plan in words."""
    spent = f"in {found.wall_time_s:.2f} s"
    orders = "in any order of the devices"
    if not found.has_all_orders:
        orders = "in this order of the devices"
    elif len(found.jobs.devices) < 2:
        orders = "that llama.cpp can run"
    if found.status is SolveStatus.OPTIMAL:
        return f"proven optimal, no plan {orders} is better {spent}"
    if found.bound is None or found.plan is None:
        return f"nothing proven {spent}"
    value = found.judged(found.plan).value_ns
    if found.objective == "context" or not value:
        return f"at most {found.bound} tokens {spent}; a longer --time-limit may tell"
    gap = format_gap(float(1 - found.bound / value))
    return f"at most {gap} above the best plan {orders} {spent}; a longer --time-limit may tell"


def _layers(use: DeviceUse) -> str:
    parts = [_range(use.layers[0], use.layers[-1])] if use.layers else []
    parts += [f"{len(use.apart)} of them in part"] if use.apart else []
    return ", ".join([*parts, *(["output"] if use.has_output else [])]) or _NONE


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _host(found: GgufPlan, uses: Sequence[DeviceUse]) -> str:
    """Return the contents of the host in words."""
    layers = len(found.jobs.model.layers)
    has_experts = any(unit.expert_bytes for unit in found.jobs.units)
    first = layers - sum(len(use.layers) for use in uses)
    apart = sum(len(use.apart) for use in uses)
    parts = ["embedding"]
    parts += [f"layers {_range(0, first - 1)}"] if first else []
    parts += [f"{'experts' if has_experts else 'feed-forward'} of {apart}"] if apart else []
    return ", ".join(parts)


def _why_no_plan(found: GgufPlan) -> str:
    """Return the reason of a plan that is missing."""
    if found.status is SolveStatus.UNKNOWN:
        return "no plan found in time; a longer --time-limit may tell"
    units = found.jobs.units
    context = found.jobs.request.context if found.objective != "context" else found.context
    needed = sum(unit.size_bytes + found.jobs.cache_bytes(unit, context) for unit in units[1:])
    if found.jobs.host is not None and found.job.host is not None:
        room, size_bytes = found.job.host.memory_bytes, units[0].size_bytes
        if room is not None and room < size_bytes:
            return (
                f"the embedding, on the host, is {format_bytes(size_bytes)}, and beside the buffer "
                f"of what runs there the host has {format_bytes(room)}; give a larger --host"
            )
    remedy = "a shorter --context, " if found.objective != "context" else ""
    host = "" if found.jobs.host else "or such as --host 64GB@ddr5-5600, "
    return (
        f"weights and caches of {context} tokens are {format_bytes(needed)}; give {remedy}"
        f"smaller --cache-type-k and --cache-type-v, {host}or more memory"
    )


def _given_lines(found: GgufPlan, words: str, given: HostWords) -> list[str]:
    """Return the score of a person's line beside the plan."""
    cost = given.evaluation
    lines = [f"given: {words}"]
    if cost.value_ns is None:
        lines.append(f"broken: {_first(cost.violations)}")
    else:
        metrics = found.metrics(given.plan)
        better = ""
        if found.plan is not None:
            best = found.judged(found.plan).value_ns
            assert best is not None
            better = f", the plan is {float(cost.value_ns / best):.2f} times as fast"
        lines.append(
            f"given: token {format_ns(round(metrics.token_ns))}, {metrics.tokens_per_s:.1f} in a "
            f"second{better}"
        )
    return [*lines, *(f"note: {note}" for note in given.notes)]


def _first(violations: Sequence[str]) -> str:
    """Return the first violation, and the number of the others."""
    first, *others = violations
    return f"{first}; and {len(others)} more" if others else first


def _rule_lines(found: GgufPlan, rules: Sequence[RuleAnswer], *, is_timed: bool) -> list[str]:
    """Return the plans of llama.cpp's own rules beside the plan."""
    rows, reasons = [], []
    for rule in rules:
        times = (_NONE, _NONE)
        if rule.metrics is not None and is_timed:
            token_ns = round(rule.metrics.token_ns)
            times = format_ns(token_ns), f"{rule.metrics.tokens_per_s:.1f}"
        rows.append((rule.name, str(rule.context or _NONE), *times, _better(found, rule)))
        if rule.evaluation.violations:
            reasons.append(f"{rule.name}: {_first(rule.evaluation.violations)}")
    return [*table_lines(_RULES, rows), *reasons] if rows else []


def _better(found: GgufPlan, rule: RuleAnswer) -> str:
    if found.plan is None or rule.metrics is None:
        return _NONE
    if found.objective == "context":
        return f"{found.context / rule.context:.2f} times"
    value = found.judged(found.plan).value_ns
    if not value or rule.evaluation.value_ns is None:
        return _NONE
    return f"{float(rule.evaluation.value_ns / value):.2f} times"
