"""The command ``hand-over``: a plan as a file that another program takes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.commands.option_reading import check_given
from experiments.commands.options import (
    PLAN_FILE,
    BuiltModelArgument,
    ConstantOption,
    JsonOption,
    out_option,
)
from experiments.console.output import check_writable, print_json, say_note
from solver import PartitionError, PartitionPlan, load_plan
from solver.io.files import write_text_atomically
from solver.model.quantities import counted, printable

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph

Form = Literal[
    "device-map", "split-spec", "programs", "checkpoint-wrapper", "megatron", "flagscale"
]
_TiedFirstOption = Annotated[
    bool,
    typer.Option(
        "--tied-first",
        help="Map modules that share a weight to the device of the first of them, instead of "
        "refusing such a plan.",
    ),
]


_MicrobatchesOption = Annotated[
    int | None,
    typer.Option(
        "--microbatches",
        metavar="COUNT",
        min=1,
        help="In a step of the pipeline, which flagscale must be told.",
    ),
]


def hand_over(
    plan_file: Annotated[str, typer.Argument(**PLAN_FILE)],
    model: BuiltModelArgument,
    to: Annotated[Form, typer.Option(help="What to write the plan as.")],
    out: Annotated[str, out_option("FILE", "What to write; a folder for programs.")],
    tied_first: _TiedFirstOption = False,
    microbatches: _MicrobatchesOption = None,
    constant: ConstantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a plan as a file that accelerate, torch, Megatron or FlagScale takes.

    For example, for accelerate and transformers:

        fxpartition plan gpt2 --devices 3x300MB --keep-whole 'transformer.h.*'
            --out plan.json
        fxpartition hand-over plan.json gpt2 --to device-map --out map.json

    A plan that cannot be said in modules is refused, and why.
    """
    from experiments.zoo.building import build_model, capture_model
    from experiments.zoo.models import resolve_built

    check_given(plan_file, "PLAN.json", "plan.json")
    check_given(out, "--out", "map.json")
    if tied_first and to != "device-map":
        raise PartitionError("--tied-first is about device maps; leave it out")
    if microbatches is not None and to != "flagscale":
        raise PartitionError("--microbatches is about flagscale; leave it out")
    if microbatches is None and to == "flagscale":
        raise PartitionError("flagscale has a number for each microbatch; add --microbatches")
    spec = resolve_built(model)
    plan = load_plan(plan_file)
    if to != "programs":
        check_writable(out, plan_file, model)

    loaded = build_model(spec)
    captured = capture_model(loaded, constant or ())
    say_note(captured)
    answer: dict[str, object] = {"to": to, "file": out}
    if to == "programs":
        answer["programs"] = names = _save_programs(captured, plan, out)
        told = counted(len(names), "program")
    elif to == "megatron":
        answer["arguments"] = words = _arguments(captured, plan)
        write_text_atomically(out, shlex.join(words) + "\n")
        told = counted(len(words) // 2, "argument")
    elif to == "flagscale":
        answer["settings"] = settings = _settings(captured, plan, microbatches or 0)
        write_text_atomically(out, json.dumps(settings, indent=1) + "\n")
        told = counted(len(settings), "setting")
    else:
        answer["modules"] = modules = _modules(captured, plan, to, tied_first)
        write_text_atomically(out, json.dumps(modules, indent=1) + "\n")
        told = counted(len(modules), "module")
    if as_json:
        print_json(answer)
    else:
        print(printable(f"wrote {out}: {told}"))


def _save_programs(captured: CapturedGraph, plan: PartitionPlan, out: str) -> list[str]:
    from experiments.problems.recomputed_plans import problem_of_plan
    from fx_bridge.checkpoint.programs import save_stage_programs
    from fx_bridge.split.by_plan import split_by_plan

    problem = problem_of_plan(captured, plan)
    programs = save_stage_programs(split_by_plan(captured, plan, problem=problem), out)
    return [stage.file for stage in programs.stages]


def _arguments(captured: CapturedGraph, plan: PartitionPlan) -> list[str]:
    from experiments.problems.recomputed_plans import problem_of_plan
    from fx_bridge.interop.megatron import megatron_arguments

    return megatron_arguments(captured, plan, problem=problem_of_plan(captured, plan))


def _settings(captured: CapturedGraph, plan: PartitionPlan, microbatches: int) -> dict[str, object]:
    from experiments.problems.recomputed_plans import problem_of_plan
    from fx_bridge.interop.megatron import flagscale_settings

    problem = problem_of_plan(captured, plan)
    return flagscale_settings(captured, plan, microbatches, problem=problem)


def _modules(
    captured: CapturedGraph, plan: PartitionPlan, to: Form, tied_first: bool
) -> Mapping[str, int | str] | Sequence[str]:
    from experiments.problems.recomputed_plans import problem_of_plan
    from fx_bridge.interop.checkpoints import checkpointed_modules
    from fx_bridge.interop.write_plans import device_map, split_spec

    if to == "device-map":
        return device_map(captured, plan, tied="first" if tied_first else "refuse")
    if to == "split-spec":
        points = split_spec(captured, plan)
        return {path: point.name.lower() for path, point in points.items()}
    return checkpointed_modules(captured, plan, problem=problem_of_plan(captured, plan))
