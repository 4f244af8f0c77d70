"""The command ``serve``: the best plan to serve a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

from experiments.commands.completions import complete_devices
from experiments.commands.option_groups import with_option_groups
from experiments.commands.option_reading import check_given, read_limits, read_pins, read_without
from experiments.commands.options import (
    AttentionOption,
    BuiltModelArgument,
    JsonOption,
    KeepWholeOption,
    LinkOption,
    PinOption,
    PlanOutOption,
    SearchOptions,
    StepsOption,
    WithoutOption,
    flag,
    option,
)
from experiments.commands.serve_answers import Searched, tell_plan, tell_plans, write_plan
from experiments.commands.serve_gguf import (
    GgufOptions,
    ServedForOption,
    check_file_options,
    check_no_gguf,
    is_gguf,
    serve_gguf,
)
from experiments.commands.serve_given import ScoredWords
from experiments.commands.serve_host import (
    Machine,
    check_host_options,
    check_words_options,
    read_machine,
)
from experiments.commands.serve_rules import ENGINES_WITH_RULES, rules_table
from experiments.commands.stored_options import CacheTypeOption, HostOption, WeightsOption
from experiments.console.output import check_writable
from fx_bridge.presentation.plan_files import form_of
from solver import PartitionError
from solver.model.job import ServingObjective
from solver.model.quantities import parse_duration

if TYPE_CHECKING:
    from experiments.problems.devices import DeviceSet
    from experiments.zoo.building import LoadedModel
    from fx_bridge.options import Costs, Placement
    from fx_bridge.serving.plan import ServingPlan
    from fx_bridge.serving.request import Request

Objective = Literal["request", "token", "throughput", "context", "all"]
_SERVING, _COSTS = "Serving", "Costs"
_MOST: Final = 10**9
"""More than any request has, so that a typing error is refused at once."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Request, devices, objective and costs of serving."""

    devices: Annotated[
        str,
        option(
            _SERVING,
            "DEVICES",
            "Such as 24GB,12GB, or 24GB@rtx-4090,12GB@rtx-3060, or a .toml file.",
            autocompletion=complete_devices,
        ),
    ] = ""
    objective: Annotated[
        Objective,
        option(
            _SERVING,
            None,
            "Optimise the time of a request, or of a token, tokens per second, or the tokens that "
            "fit; all makes a plan for each of them.",
        ),
    ] = "request"
    batch: Annotated[
        int, option(_SERVING, "COUNT", "Sequences that are served together.", min=1, max=_MOST)
    ] = 1
    context: Annotated[
        int,
        option(
            _SERVING,
            "TOKENS",
            "Positions of a sequence; ignored for the objective context.",
            min=1,
            max=_MOST,
        ),
    ] = 4096
    prompt: Annotated[int, option(_SERVING, "TOKENS", "Of the prompt.", min=1, max=_MOST)] = 512
    generate: Annotated[int, option(_SERVING, "TOKENS", "After the prompt.", min=0, max=_MOST)] = (
        128
    )
    chunk: Annotated[
        int | None,
        option(
            _SERVING, "TOKENS", "Most of the prompt in one call; all if left out.", min=1, max=_MOST
        ),
    ] = None
    first_token: Annotated[
        str | None, option(_SERVING, "TIME", "Most time of the prompt, such as 500ms; for token.")
    ] = None
    usable: Annotated[
        float,
        option(
            _SERVING,
            "PART",
            "Usable part of each device's memory; the rest is for usage outside the memory model.",
            min=0.01,
            max=1.0,
        ),
    ] = 0.9
    whole_layers: Annotated[bool, flag(_SERVING, "--whole-layers", "Divide no layer.")] = False
    host: HostOption = None
    host_link: Annotated[
        str | None,
        option(_COSTS, "LINK", "From the host to each device; without it PCIe: 25GB/s,10us."),
    ] = None
    for_: ServedForOption = None
    words: Annotated[
        str | None,
        option(
            _SERVING,
            "WORDS",
            "Given arguments of the engine of --for, scored beside the plan; with --host, such as "
            "'-ngl 33 --n-cpu-moe 8'.",
        ),
    ] = None
    rules: Annotated[
        bool,
        flag(
            _SERVING,
            "--rules",
            "Show beside the plan those of all engines' own rules; with --for that engine's "
            "is shown in any case.",
        ),
    ] = False
    weights: WeightsOption = None
    cache_type: CacheTypeOption = None
    keep_whole: KeepWholeOption = None
    pin: PinOption = None
    link: LinkOption = None
    memory_model: Annotated[
        Literal["weights", "inference"] | None,
        option(
            _COSTS,
            None,
            "What counts as memory: weights and caches, or also values; weights if left out.",
        ),
    ] = None
    attention: AttentionOption = None
    experts_read: Annotated[
        Literal["average", "most", "all"],
        option(
            _COSTS,
            None,
            "How many experts of a mixture a step reads: as many as tokens choose on average, or "
            "can choose at most, or all. Every expert takes memory.",
        ),
    ] = "most"


@with_option_groups
def serve(
    model: BuiltModelArgument,
    options: ServeOptions,
    gguf: GgufOptions,
    search: SearchOptions,
    out: PlanOutOption = None,
    without: WithoutOption = None,
    steps: StepsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Plan how a language model serves: caches, prompts and tokens in one plan.

    For example, the most tokens that fit, and the least time of a token:

        fxpartition serve configuration:llama3-8b --devices 24GB,12GB
            --objective context
        fxpartition serve configuration:llama3-8b --devices 24GB,12GB
            --objective token

    MODEL is one of transformers for causal language modelling. The answer has
    the values of all objectives under the best plan for one. The best plans
    differ; in one table, with one capture of the model:

        fxpartition serve configuration:llama3-8b --devices 24GB,12GB
            --objective all
    """
    check_writable(out, model, options.devices)
    form = form_of(out or "plan.json")
    if is_gguf(model):
        asked = {**asdict(options), "without": without, "steps": steps}
        check_file_options(asked, form, search)
        machine = _machine(options, _devices(options.devices))
        engine, request = options.for_ or "llama.cpp", _request(options)
        own = model, engine, request, machine, asked["objective"], options.words
        serve_gguf(*own, gguf, search, out, as_json)
        return
    from experiments.zoo.models import resolve_built
    from fx_bridge.serving.host_words import check_search

    check_no_gguf(gguf, options.for_)
    searched = Searched(read_limits(search), search.solver, read_without(without), steps)
    devices = _devices(options.devices)
    first_ns = None if options.first_token is None else _time_ns(options.first_token)
    spec = resolve_built(model, options.weights)
    request = _request(options)
    check_host_options(options.host, search.solver, options.memory_model)
    check_words_options(options.host, options.for_, options.words, devices.devices)
    if options.host is not None and options.for_ is not None:
        check_search(options.for_, searched.solver, searched.without, first_ns)
    objectives = _objectives(options, out, steps=steps)
    machine = _machine(options, devices)

    from experiments.zoo.building import build_model, capture_model

    loaded = build_model(spec)
    # Commands that read the plan capture the model whole; report a failure before the search.
    whole = None if out is None else capture_model(loaded)
    plans = _plans(loaded, request, options, machine, objectives, first_ns, searched)
    if options.objective == "all":
        tell_plans(plans, options.for_, as_json=as_json)
        return
    (found,) = plans
    write_plan(found, whole, out, model, options.for_)
    table = rules_table(found, loaded.module, options.for_, all_rules=options.rules)
    given = None if options.words is None else ScoredWords.of(found, options.for_, options.words)
    tell_plan(found, table, given, options.for_, searched, as_json=as_json)


def _devices(text: str) -> DeviceSet:
    from experiments.problems.devices import parse_devices

    if not text:
        raise PartitionError("there are no devices; write for example --devices 24GB,12GB")
    check_given(text, "--devices", "24GB,12GB")
    return parse_devices(text, "--devices")


def _plans(
    model: LoadedModel,
    request: Request,
    options: ServeOptions,
    machine: Machine,
    objectives: Sequence[ServingObjective],
    first_ns: int | None,
    searched: Searched,
) -> list[ServingPlan]:
    """Return the best plan for each objective, from one capture."""
    from fx_bridge.options import Search
    from fx_bridge.serving.planner import ServingPlanner

    planner = ServingPlanner(
        model.module,
        request,
        devices=machine.devices,
        whole_layers=options.whole_layers,
        engine=options.for_,
        placement=_placement(options),
        costs=_launched(machine.costs, options.for_),
        host=machine.host,
        weight_bytes=model.weight_bytes,
    )
    found: list[ServingPlan] = []
    has_rules = options.rules or options.for_ in ENGINES_WITH_RULES
    for number, objective in enumerate(objectives):
        spent_s = sum(plan.solved.wall_time_s for plan in found)
        share = searched.limits.after(spent_s, searches=len(objectives) - number)
        found.append(
            planner.plan(
                objective,
                # Among several objectives, the limit applies to token alone.
                first_token_limit_ns=first_ns
                if objective in ("token", options.objective)
                else None,
                # With all objectives, context captures the growth of values anyway.
                any_context=options.objective == "all" or has_rules,
                search=Search(share, searched.solver, searched.without),
            )
        )
    return found


def _objectives(
    options: ServeOptions, out: str | None, *, steps: bool
) -> tuple[ServingObjective, ...]:
    """Return the requested objectives, one plan each."""
    if options.first_token is not None and options.objective not in ("token", "all"):
        raise PartitionError(
            "--first-token is a limit of --objective token; write that, or leave it out"
        )
    if options.objective != "all":
        return (options.objective,)
    single = {"--out": out is not None, "--rules": options.rules, "--steps": steps}
    for name, is_given in single.items():
        if is_given:
            raise PartitionError(
                f"{name} is for one plan, and --objective all finds several; write for example "
                "--objective request"
            )
    return get_args(ServingObjective)


def _request(options: ServeOptions) -> Request:
    from fx_bridge.serving.request import Request

    own = options.batch, options.context, options.prompt, options.generate, options.chunk
    return Request(*own, cache_type=options.cache_type)


def _time_ns(text: str) -> int:
    where, remedy = f"--first-token {text!r}", "write for example 500ms"
    limit_ns = parse_duration(text, where, remedy)
    if not limit_ns:
        raise PartitionError(f"{where} leaves no time for the prompt; {remedy}")
    return limit_ns


def _placement(options: ServeOptions) -> Placement:
    from fx_bridge.options import Placement

    return Placement(read_pins(options.pin), (), options.keep_whole or ())


def _launched(costs: Costs, engine: str | None) -> Costs:
    """Return costs whose kernels are issued as `engine` issues its own."""
    from fx_bridge.serving.host_words import HOST_ENGINES

    if engine not in HOST_ENGINES:
        return costs
    return replace(
        costs, specs={name: spec.launched("engine") for name, spec in costs.specs.items()}
    )


def _machine(options: ServeOptions, devices: DeviceSet) -> Machine:
    from fx_bridge.options import Costs

    costs = Costs(
        memory_model=options.memory_model or "weights",
        specs=devices.spec_of,
        attention=options.attention,
        experts_read=options.experts_read,
    )
    host = options.host, options.host_link
    return read_machine(devices, costs, options.usable, options.link, *host)
