"""Plans of ``serve`` with a host: resident, streamed and host-computed units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import typer

from experiments.commands.serve_answers import experts_lines, words_lines
from experiments.commands.serve_given import ScoredWords
from experiments.commands.serve_rules import StreamedRulesTable
from experiments.console.exit_codes import EXIT_NO_PLAN, EXIT_TIME_OUT
from experiments.console.output import print_json, print_lines
from fx_bridge.presentation.modules import ModuleTree
from fx_bridge.presentation.tables import table_lines
from solver import Device, PartitionError, SolveLimits, SolveStatus
from solver.model.devices import DEFAULT_DEVICE_CLASS, PCIE, STAGING_HOST, Link
from solver.model.quantities import format_bytes, format_ns

if TYPE_CHECKING:
    from torch import nn

    from experiments.problems.devices import DeviceSet
    from fx_bridge.costs.device_specs import DeviceSpec
    from fx_bridge.options import Costs
    from fx_bridge.serving.offload import StreamedObjective, StreamedServingPlan
    from fx_bridge.serving.request import Request

_MOST_NAMES: Final = 160
"""Characters of a list of half layers: two lines of most terminals."""
_MODE_WORDS: Final = {"resident": "resident", "streamed": "streamed", "host": "on the host"}
_EXAMPLE: Final = "write one memory, such as 64GB@cpu"


@dataclass(frozen=True, slots=True)
class HostRequest:
    """The host: memory, device class, and links to devices by their names."""

    memory_bytes: int | None
    device_class: str
    specs: Mapping[str, DeviceSpec]
    links: Mapping[str, Link]

    @classmethod
    def read(cls, host: str, link: str | None, devices: DeviceSet) -> HostRequest:
        """Read ``MEMORY[@CLASS]`` and a link, or the links of a device file.

        Raises
        ------
        PartitionError
            If one of them is invalid.
        """
        from experiments.problems.devices import parse_devices, parse_link

        if host.strip().lower() in ("", "auto"):
            raise PartitionError(f"--host is {host.strip() or 'empty'}; {_EXAMPLE}")
        found = parse_devices(host, "--host", _EXAMPLE)
        if len(found.devices) > 1:
            raise PartitionError(f"--host {host!r} names several; {_EXAMPLE}")
        (device,) = found.devices
        if device.device_class == DEFAULT_DEVICE_CLASS:
            found = parse_devices(f"{host}@cpu")
            (device,) = found.devices
        return cls(
            device.memory_bytes,
            device.device_class,
            {**devices.spec_of, **found.spec_of},
            _links(devices, None if link is None else parse_link(link, "--host-link")),
        )


def _links(devices: DeviceSet, given: Link | None) -> dict[str, Link]:
    """Return the link from the host to each device."""
    pairs = {} if devices.interconnect is None else devices.interconnect.links
    named = {pair for pair in pairs if STAGING_HOST in pair}
    if named and given is not None:
        raise PartitionError(
            "--host-link and [[links]] of the devices' file both say how the host is linked; "
            "leave one of them out"
        )
    default = PCIE.default if given is None else given
    return {d.name: pairs.get((STAGING_HOST, d.name), default) for d in devices.devices}


def check_host_options(host: str | None, link: str | None, other: str | None) -> None:
    """Refuse options that do not apply with a host, or without one."""
    if host is None and link is not None:
        raise PartitionError("--host-link is the link from --host; add such as --host 64GB")
    if host is not None and other == "--objective":
        raise PartitionError(
            "with --host the time of a request or of a token is planned; write --objective request "
            "or token, or leave --host out"
        )
    if host is not None and other == "--out":
        raise PartitionError(
            "pages and graphs show no host; write the plan itself, as --out plan.json"
        )
    if host is not None and other is not None:
        raise PartitionError(f"with --host {other} has no meaning; leave it out")


def check_words_options(
    host: str | None, engine: str | None, words: str | None, devices: Sequence[Device]
) -> None:
    """Refuse an engine without its host, arguments without an engine, and invalid arguments.

    This makes the checks of `words` that need no model, before one is captured.
    """
    from fx_bridge.interop.stage_layers import is_host
    from fx_bridge.serving.host_words import HOST_ENGINES, check_words

    if host is not None and engine is not None and engine not in HOST_ENGINES:
        raise PartitionError(
            f"{engine} has no words for what a host computes; write --for "
            f"{' or '.join(HOST_ENGINES)}, or leave --host out"
        )
    if words is not None and (host is None or engine is None):
        raise PartitionError(
            "--words are those of an engine with a host; add such as --host 64GB --for "
            f"{HOST_ENGINES[0]}, or score words without a host by fxpartition score"
        )
    if engine in HOST_ENGINES and host is None and not any(is_host(d.name) for d in devices):
        raise PartitionError(
            f"{engine} has the embedding on the host, and there is none; add such as "
            "--host 64GB@cpu, or 64GB@cpu to --devices"
        )
    if words is not None:
        check_words(words, [device.name for device in devices])


def answer_with_host(
    model: nn.Module,
    request: Request,
    devices: Sequence[Device],
    host: HostRequest,
    objective: StreamedObjective,
    costs: Costs,
    limits: SolveLimits,
    engine: str | None,
    words: str | None,
    write: Callable[[StreamedServingPlan], None],
    *,
    with_rules: bool,
    as_json: bool,
) -> None:
    """Plan, write, print and exit by the status; `words` are scored beside the plan."""
    from fx_bridge.costs.operators import has_experts
    from fx_bridge.options import Search
    from fx_bridge.serving.offload import plan_streamed_serving
    from solver.offload.model import OffloadDevice, OffloadHost

    found = plan_streamed_serving(
        model,
        request,
        devices=[OffloadDevice(device, host.links[device.name]) for device in devices],
        host=OffloadHost(host.memory_bytes),
        host_class=host.device_class,
        objective=objective,
        engine=engine,
        costs=replace(costs, specs=host.specs),
        search=Search(limits),
    )
    write(found)
    scored = None
    if engine is not None and words is not None:
        scored = ScoredWords(found, words, found.host_words(engine).read(words))
    table = StreamedRulesTable.of(found) if with_rules else None
    read = costs.experts_read if has_experts(found.captured) else None
    if as_json:
        rules = {} if table is None else {"rules": table.json()}
        given = {} if scored is None else {"given": scored.json()}
        print_json({**_json(found, engine), "experts_read": read, **given, **rules})
    else:
        lines = [*_lines(found), *experts_lines(read)]
        if engine is not None and found.solved.plan is not None:
            lines += words_lines(found.words(engine))
        lines += () if scored is None else scored.lines()
        lines += () if table is None else table.lines()
        print_lines(lines)
    if found.solved.plan is None:
        is_proven = found.solved.status is SolveStatus.INFEASIBLE
        raise typer.Exit(EXIT_NO_PLAN if is_proven else EXIT_TIME_OUT)


def _json(found: StreamedServingPlan, engine: str | None) -> dict[str, Any]:
    solved = found.solved
    answer: dict[str, Any] = {
        "objective": found.objective,
        "status": solved.status.value,
        "value": None if solved.objective is None else float(solved.objective),
        "bound": None if solved.objective_bound is None else int(solved.objective_bound),
        "gap": solved.gap,
    }
    if solved.plan is None or solved.objective is None:
        return {**answer, "reason": _no_plan(found)}
    plan = solved.plan
    first_ns = found.first_token_ns
    return {
        **answer,
        "batch": found.step.batch,
        "context": found.step.context,
        "first_token_ns": None if first_ns is None else float(first_ns),
        "token_ns": float(found.token_ns),
        "request_ns": None if first_ns is None else float(solved.objective),
        "tokens_per_s": found.step.batch * 1e9 / float(found.token_ns),
        "modes": found.counts,
        "units": {
            name: {"device": plan.assignment[name], "mode": mode}
            for name, mode in plan.modes.items()
        },
        **({} if engine is None else {"words": found.words(engine)}),
    }


def _lines(found: StreamedServingPlan) -> list[str]:
    from solver.offload.evaluate import evaluate_offload

    solved = found.solved
    if solved.plan is None or solved.objective is None:
        return [f"{found.objective}: {solved.status.value}; {_no_plan(found)}"]
    cost = evaluate_offload(found.problem, solved.plan)
    header = ("device", "usable", "for good", "for loads", *_MODE_WORDS.values())
    rows = []
    for place in found.problem.devices:
        buffer = cost.buffer_bytes[place.name]
        rows.append(
            (
                place.name,
                format_bytes(place.device.memory_bytes),
                format_bytes(cost.held_bytes[place.name]),
                format_bytes(buffer),
                *map(str, found.counts[place.name].values()),
            )
        )
    token_ns = float(found.token_ns)
    times = [
        f"each token: {format_ns(round(token_ns))}, "
        f"{found.step.batch * 1e9 / token_ns:.1f} in a second"
    ]
    if found.first_token_ns is not None:
        times.insert(0, f"first token: {format_ns(round(found.first_token_ns))}")
        times.append(f"request: {format_ns(round(solved.objective))}")
    bound = format_ns(round(solved.objective_bound or 0))
    proof = f"bound {bound}, gap {100 * (solved.gap or 0):.2f} %"
    return [
        *table_lines(header, rows, below=_modules(found)),
        f"host: {format_bytes(cost.host_bytes)}",
        *times,
        f"{found.objective}: {'proven optimal' if solved.status is SolveStatus.OPTIMAL else proof}",
    ]


def _modules(found: StreamedServingPlan) -> list[list[str]]:
    """Return the units of each device, one line per mode."""
    plan = found.plan
    tree = ModuleTree({unit: unit for unit in plan.modes})
    labelled: dict[str, list[str]] = {place.name: [] for place in found.problem.devices}
    for device, lines in labelled.items():
        for mode, label in _MODE_WORDS.items():
            is_own = {unit for unit, of in plan.assignment.items() if of == device}
            own = [unit for unit, given in plan.modes.items() if given == mode and unit in is_own]
            lines += [f"{label}: {tree.words(own, _MOST_NAMES)}"] * bool(own)
    return [*labelled.values()]


def _no_plan(found: StreamedServingPlan) -> str:
    units = found.problem.units
    needed = format_bytes(sum(unit.held_bytes for unit in units))
    return f"weights and caches are {needed}; give the devices or the host more memory"
