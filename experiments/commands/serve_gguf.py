"""Plans of ``serve`` for a model in a GGUF file: the header is read, and torch is not loaded."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from experiments.commands.option_reading import read_limits
from experiments.commands.options import FOR, LimitOptions, SearchOptions, flag
from experiments.commands.serve_answers import Searched, tell_plan
from experiments.commands.serve_given import ScoredWords
from experiments.commands.serve_host import Machine
from experiments.commands.serve_rules import RulesTable
from experiments.commands.stored_options import KeyTypeOption, ValueTypeOption
from experiments.console.output import say_written
from experiments.problems.plan_files import EngineName
from fx_bridge.files.stored_types import DEFAULT_CACHE_TYPE, GGML_CACHE_TYPES, CacheType
from fx_bridge.interop.ik_llama_cpp import PROGRAM as IK_LLAMA_CPP
from fx_bridge.interop.ik_llama_cpp import as_held
from fx_bridge.presentation.plan_files import Form
from solver import PartitionError, SolveStatus, save_plan
from solver.model.checks import check_choice
from solver.model.devices import DEFAULT_DEVICE_CLASS

if TYPE_CHECKING:
    from fx_bridge.files.gguf_layers import GgufModel
    from fx_bridge.serving.gguf_plan import GgufPlan
    from fx_bridge.serving.host_words import HostWords
    from fx_bridge.serving.request import Request
    from solver import SolveLimits
    from solver.model.job import ServingObjective

_SECONDS: Final = 1.5
"""Time limit unless another one is given."""
_MOST_CHECKS: Final = 4
_ELSEWHERE: Final = frozenset({
    *("-m", "--model", "-c", "--ctx-size", "-np", "--parallel", "-ub", "--ubatch-size", "-b"),
    *("--batch-size", "-t", "--threads", "-fa", "--flash-attn", "-ctk", "--cache-type-k", "-ctv"),
    *("--cache-type-v", "--host", "--port", "-mla", "-amb"),
})  # fmt: skip
"""Options of llama.cpp with a value that says nothing of places: ``serve`` has its own."""
_OPTION: Final = re.compile(r"-+[a-zA-Z]")
_USED: Final = frozenset({
    *("devices", "objective", "batch", "context", "prompt", "generate", "chunk", "usable", "host"),
    *("host_link", "link", "for_", "words", "rules", "experts_read", "cache_type"),
})  # fmt: skip
"""Options of ``serve`` that are about a file too."""

ServedForOption = Annotated[Literal[EngineName, "ik_llama.cpp"] | None, FOR]


@dataclass(frozen=True, slots=True)
class GgufOptions:
    """Options that are about a file alone."""

    cache_type_k: KeyTypeOption = None
    cache_type_v: ValueTypeOption = None
    check: Annotated[
        bool,
        flag(
            "GGUF files",
            "--check",
            "Ask llama-fit-params of llama.cpp what the line needs, and plan again with less "
            "memory where that is more than a device has.",
        ),
    ] = False


def is_gguf(model: str) -> bool:
    """Return True if a model is named by a GGUF file."""
    return model.lower().endswith(".gguf")


def check_no_gguf(options: GgufOptions, engine: str | None) -> None:
    """Refuse options of files for another model."""
    if engine == IK_LLAMA_CPP:
        raise PartitionError(
            f"--for {engine} is for a .gguf file; give one, or write --for llama.cpp"
        )
    for name, value in asdict(options).items():
        if value not in (None, False):
            raise PartitionError(
                f"--{name.replace('_', '-')} is about a .gguf file; leave it out, or give one"
            )


def serve_gguf(
    path: str,
    engine: str,
    request: Request,
    machine: Machine,
    objective: ServingObjective,
    text: str | None,
    options: GgufOptions,
    search: SearchOptions,
    out: str | None,
    as_json: bool,
) -> None:
    """Plan a model in a file, and print the line of its engine, beside a line in `text`."""
    from experiments.planners.gguf_rules import served_by_gguf_rules
    from fx_bridge.serving.gguf_job import GgufJobs
    from fx_bridge.serving.gguf_plan import plan_gguf

    _check_machine(machine, objective)
    is_ik, devices = engine == IK_LLAMA_CPP, machine.devices
    if is_ik and options.check:
        raise PartitionError(f"--check asks a program that {engine} does not have; leave it out")
    model = _model(path, request.cache_type, options)
    model = as_held(model, len(devices)) if is_ik else model
    jobs = GgufJobs(model, request, devices, machine.costs, machine.host, engine=engine)
    limits = read_limits(search)
    if search.time_limit == LimitOptions().time_limit:
        limits = replace(limits, time_limit_s=_SECONDS)
    found = plan_gguf(jobs, objective, limits)
    if options.check:
        found = checked(found, limits)
    words = None
    if text is not None:
        words = ScoredWords(found, text, read_line(found, placing_words(text)))
    if out is not None and found.solved.plan is not None and found.line(found.plan):
        # Not every plan has a line, and without one nothing is written.
        save_plan(found.solved.plan, out)
        say_written(out)
    searched = Searched(limits, search.solver, (), with_steps=False)
    # The rules are those of llama.cpp.
    table = None if is_ik else RulesTable(found, *served_by_gguf_rules(found), tokens="tokens")
    tell_plan(found, table, words, None, searched, as_json=as_json)


def check_file_options(given: Mapping[str, Any], form: Form, search: SearchOptions) -> None:
    """Refuse options of ``serve``, by name, that say nothing of a file."""
    from fx_bridge.serving.host_words import HOST_ENGINES

    if form != "plan":
        raise PartitionError(
            "pages show models that are captured; write the plan itself, as --out plan.json"
        )
    others = {"--solver": search.solver != "auto", "--workers": (search.workers or 1) > 1}
    named = {
        f"--{name.replace('_', '-')}": bool(value)
        for name, value in given.items()
        if name not in _USED
    }
    for name, is_given in {**named, **others}.items():
        if is_given:
            raise PartitionError(f"{name} has no meaning for a .gguf file; leave it out")
    if given["rules"] and given["for_"] == IK_LLAMA_CPP:
        raise PartitionError("--rules are those of llama.cpp; leave --rules out, or --for")
    engines = (*HOST_ENGINES, IK_LLAMA_CPP)
    if given["for_"] not in (None, *engines):
        raise PartitionError(
            f"{given['for_']} does not read .gguf files in layers; write --for "
            f"{' or '.join(engines)}, or leave --for out"
        )
    if given["objective"] == "all":
        raise PartitionError(
            "--objective all is for models that are captured; write one, such as --objective token"
        )


def _model(path: str, both: CacheType | None, options: GgufOptions) -> GgufModel:
    from fx_bridge.files.gguf_header import read_gguf
    from fx_bridge.files.gguf_layers import gguf_model

    if both is not None:
        check_choice(both, GGML_CACHE_TYPES, "--cache-type")
    return gguf_model(
        read_gguf(path),
        cache_type_k=options.cache_type_k or both or DEFAULT_CACHE_TYPE,
        cache_type_v=options.cache_type_v or both or DEFAULT_CACHE_TYPE,
    )


def _check_machine(machine: Machine, objective: ServingObjective) -> None:
    """Refuse hosts among the devices, and ask for the classes of devices where times count."""
    from fx_bridge.interop.stage_layers import is_host

    for device in machine.devices:
        if is_host(device.name) or device.is_host:
            raise PartitionError(
                f"device {device.name!r} is a host; write it as --host, such as "
                "--host 64GB@ddr5-5600"
            )
        is_timed = objective != "context" or machine.host is not None
        if is_timed and device.device_class == DEFAULT_DEVICE_CLASS:
            raise PartitionError(
                f"the speed of device {device.name!r} is not known; write its class, such as "
                "24GB@rtx-3090 (fxpartition devices lists them), or a file of devices with its "
                "rates"
            )


def read_line(found: GgufPlan, text: str) -> HostWords:
    """Return the plan of a line on devices in its own order: that of ``-dev``, or of their names.

    Batches take turns where a line has all layers on several devices, and no parts elsewhere.
    """
    from fx_bridge.interop.llama_cpp import (
        NO_OP_OFFLOAD,
        WITHIN_LAYERS,
        read_options,
        split_options,
    )
    from fx_bridge.serving.host_words import HOST

    own = {device.name: device for device in found.jobs.devices}
    names = sorted(own, key=lambda name: (len(name), name))
    given = read_options(text)
    options = split_options(given, [*names, HOST])
    others = (name for name in names if name not in options.devices)
    fills = options.offloaded is None or options.offloaded > len(found.jobs.model.layers)
    divides = given.keys() & WITHIN_LAYERS.keys() - {NO_OP_OFFLOAD}
    jobs = found.jobs.on(
        [own[name] for name in (*options.devices, *others)],
        may_fill=fills and not divides and len(options.devices) > 1,
    )
    asked = jobs.at(found.context).replace(objective=found.objective)
    return replace(found, jobs=jobs, asked=asked).host_words.read(text)


def placing_words(text: str) -> str:
    """Return the part of a line of llama.cpp that is about places."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PartitionError(f"--words: {error}; close the quotation") from None
    if words and words[0].startswith("llama-"):
        words = words[1:]
    kept: list[str] = []
    while words:
        word = words.pop(0)
        if word not in _ELSEWHERE:
            kept.append(word)
        elif words and not _OPTION.match(words[0]):
            # In older builds some of them, such as -fa, have no value.
            words = words[1:]
    return shlex.join(kept)


def checked(found: GgufPlan, limits: SolveLimits) -> GgufPlan:
    """Return a plan that fits by the engine's own count of bytes.

    Raises
    ------
    PartitionError
        If the engine is not installed or refuses the line, or counts more after every plan.
    """
    from fx_bridge.interop.llama_cpp import device_of
    from fx_bridge.interop.llama_cpp_check import check_by_engine
    from fx_bridge.serving.gguf_plan import plan_gguf

    memory_of = {device.name: device.memory_bytes for device in found.jobs.devices}
    first, beyond = found, dict[str, int]()
    for _ in range(_MOST_CHECKS):
        if found.solved.plan is None:
            break
        uses = check_by_engine(found.line(found.plan)[1:])
        used = {device_of(name): size_bytes for name, size_bytes in uses.items()}
        beyond = {
            name: used[name] - size_bytes
            for name, size_bytes in memory_of.items()
            if size_bytes is not None and used.get(name, 0) > size_bytes
        }
        if not beyond:
            return found if found is first else _with_bounds(found, first)
        less = [
            replace(d, memory_bytes=max((d.memory_bytes or 0) - beyond[d.name], 1))
            if d.name in beyond
            else d
            for d in found.jobs.devices
        ]
        found = plan_gguf(found.jobs.on(less), found.objective, limits)
    if first.solved.plan is None:
        return first
    raise PartitionError(
        f"llama-fit-params counts more than {' and '.join(beyond)} has, whatever the plan; write "
        "a shorter --context or a smaller --usable"
    )


def _with_bounds(found: GgufPlan, first: GgufPlan) -> GgufPlan:
    """Return a plan for less memory with the bounds of all plans, which another plan had."""
    bounds, evaluation = first.solved.objective_bounds, found.solved.evaluation
    is_optimal = evaluation is not None and evaluation.objective == bounds
    status = SolveStatus.OPTIMAL if is_optimal else SolveStatus.FEASIBLE
    return replace(found, solved=replace(found.solved, status=status, objective_bounds=bounds))
