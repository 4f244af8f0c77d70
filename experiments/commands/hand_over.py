"""The command ``hand-over``: a plan as a file for another program."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, cast

import typer

from experiments.commands.option_groups import with_option_groups
from experiments.commands.option_reading import check_given, read_capture, read_devices
from experiments.commands.options import (
    PLAN_FILE,
    BuiltModelArgument,
    CaptureOptions,
    DevicesOption,
    JsonOption,
    MicrobatchesOption,
    out_option,
)
from experiments.console.output import check_writable, print_json, print_lines, say, say_note
from experiments.problems.plan_files import EngineName, read_foreign_plan
from fx_bridge.presentation.modules import ModuleTree
from solver import Device, PartitionError, PartitionPlan, PartitionProblem, Stage, load_plan
from solver.io.files import write_text_atomically
from solver.model.quantities import counted

if TYPE_CHECKING:
    from experiments.problems.plan_files import PlanFormat
    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.interop.words import Words

Form = Literal["accelerate", "split-spec", "checkpoint-wrapper", EngineName, "flagscale"]
_WITH_PROBLEM: Final = ("checkpoint-wrapper", "megatron", "flagscale")
"""Forms that can express recomputed operators."""
_TiedFirstOption = Annotated[
    bool,
    typer.Option(
        "--tied-first",
        help="Map modules that share a weight to the device of the first of them, instead of "
        "refusing such a plan.",
    ),
]


@with_option_groups
def hand_over(
    plan_file: Annotated[str, typer.Argument(**PLAN_FILE)],
    model: BuiltModelArgument,
    to: Annotated[Form, typer.Option(help="Format of the file.")],
    out: Annotated[str, out_option("FILE", "File to write.")],
    capture: CaptureOptions,
    tied_first: _TiedFirstOption = False,
    microbatches: MicrobatchesOption = None,
    devices: DevicesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a plan as a file for accelerate, torch, or a program that serves or trains.

    For example, for accelerate and transformers:

        fxpartition plan gpt2 --devices 3x300MB --keep-whole 'transformer.h.*'
            --out plan.json
        fxpartition hand-over plan.json gpt2 --to accelerate --out map.json

    And for vLLM, whose plans have whole layers:

        fxpartition plan gpt2 --devices 3x300MB --for vllm --out plan.json
        fxpartition hand-over plan.json gpt2 --to vllm --out words.txt
        fxpartition hand-over plan.json gpt2 --to vllm --out vllm.json

    The second file is for the plug-in of vLLM:

        FXPARTITION_PLAN=vllm.json vllm serve gpt2 --pipeline-parallel-size 3

    A plan that the program cannot run is refused, with the reason and the
    nearest plan that it can run; with --devices also its cost on them.
    """
    from experiments.problems.recomputed_plans import problem_of_plan
    from experiments.problems.request import ProblemRequest, read_problem
    from experiments.zoo.building import build_model, capture_model
    from experiments.zoo.models import resolve_built

    check_given(plan_file, "PLAN.json", "plan.json")
    check_given(out, "--out", "map.json")
    _check_options(to, tied_first, microbatches, is_scored=bool(devices))
    spec = resolve_built(model)
    plan = load_plan(plan_file)
    check_writable(out, plan_file, model)

    from fx_bridge.interop.write_plans import check_resident

    check_resident(plan)
    problem, asked = None, read_capture(capture)
    if devices:
        request = ProblemRequest(devices=read_devices(devices), capture=asked)
        captured, problem = read_problem(model, request, lambda _: None)
        assert captured is not None
    else:
        captured = capture_model(build_model(spec), asked)
        if to in _WITH_PROBLEM:
            problem = problem_of_plan(captured, plan)
    say_note(captured)
    answer: dict[str, object] = {"to": to, "file": out}
    as_file = out.lower().endswith(".json")
    output = _output(captured, plan, problem, to, tied_first, microbatches, as_file)
    answer[output.key] = output.content
    write_text_atomically(out, output.text)
    _note_moved(captured, plan, to, out)
    if output.stages:
        answer["devices"] = [stage.device for stage in output.stages]
    if as_json:
        print_json(answer)
    else:
        print_lines(
            [f"wrote {out}: {output.summary}", *_stage_lines(captured, plan, output.stages)]
        )


def _stage_lines(
    captured: CapturedGraph, plan: PartitionPlan, stages: Sequence[Stage]
) -> list[str]:
    """Return the modules of each stage of a plan, and a line with the devices of the stages.

    The line has the environment variable that gives rank n the n-th device, if one can.
    """
    from fx_bridge.interop.words import VISIBLE, visible_devices

    if not stages:
        return []
    visible = visible_devices([stage.device for stage in stages], always=True)
    summary = f"stages run on {', '.join(map(str, stages))}"
    summary += "" if visible is None else f"; {VISIBLE}={visible}"
    return [*ModuleTree(captured.modules.innermost).stage_lines(plan), summary]


def _check_options(
    to: Form, tied_first: bool, microbatches: int | None, *, is_scored: bool
) -> None:
    if is_scored and (to in _WITH_PROBLEM or to in ("accelerate", "split-spec")):
        raise PartitionError(f"--devices is about engines, and {to} is none; leave it out")
    if tied_first and to != "accelerate":
        raise PartitionError("--tied-first is about device maps; leave it out")
    if microbatches is not None and to != "flagscale":
        raise PartitionError("--microbatches is about flagscale; leave it out")
    if microbatches is None and to == "flagscale":
        raise PartitionError("flagscale has a number for each microbatch; add --microbatches")


def _note_moved(captured: CapturedGraph, plan: PartitionPlan, to: Form, file: str) -> None:
    """Note on stderr if the written file expresses a plan other than the given one."""
    if plan.recomputed or to in ("checkpoint-wrapper", "flagscale"):
        return
    form = cast("PlanFormat", "device-map" if to == "accelerate" else to)
    devices = [Device(name) for name in plan.device_order]
    read = read_foreign_plan(file, devices, captured, form).plan
    moved = [n for n, device in plan.assignment.items() if read.assignment[n] != device]
    if moved:
        say(
            f"note: {counted(len(moved), 'operator')}, such as {moved[0]!r}, "
            f"{'runs' if len(moved) == 1 else 'run'} on another stage than in the plan; "
            "fxpartition score says what that costs"
        )


class _Output(NamedTuple):
    """A plan in the form of a program: JSON key and value, file text, and a summary.

    `stages` are the stages in the program's numbering.
    """

    key: str
    content: object
    text: str
    summary: str
    stages: Sequence[Stage] = ()


def _output(
    captured: CapturedGraph,
    plan: PartitionPlan,
    problem: PartitionProblem | None,
    to: Form,
    tied_first: bool,
    microbatches: int | None,
    as_file: bool,
) -> _Output:
    from fx_bridge.interop.checkpoints import checkpointed_modules
    from fx_bridge.interop.engines import ENGINES, engine_words
    from fx_bridge.interop.layered_model import LayeredModel
    from fx_bridge.interop.megatron import flagscale_settings, megatron_arguments
    from fx_bridge.interop.write_plans import device_map, split_spec, stage_devices

    words: Words | None = None
    if to == "megatron":
        words = megatron_arguments(captured, plan, problem=problem)
    elif to == "flagscale":
        words = flagscale_settings(captured, plan, microbatches or 0, problem=problem)
    elif to in ENGINES:
        words = engine_words(captured, plan, to, problem=problem)
    if words is not None:
        is_list = isinstance(words, list)
        text = shlex.join(words) if isinstance(words, list) else json.dumps(words, indent=1)
        layers = LayeredModel(captured, to).stages_of(plan)[0]
        if to == "vllm" and as_file:
            counts = [stage.count for stage in layers]
            model = None if captured.source is None else type(captured.source).__name__
            start = {"to": to, "arguments": words, "layers": counts, "architecture": model}
            text = json.dumps(start, indent=1)
        summary = ", ".join(f"{counted(stage.count, 'layer')} on {stage}" for stage in layers)
        stages = [Stage(stage.device, stage.chunk) for stage in layers]
        return _Output("arguments" if is_list else "settings", words, f"{text}\n", summary, stages)
    modules: dict[str, int | str] | dict[str, str] | list[str]
    if to == "accelerate":
        modules = device_map(captured, plan, tied="first" if tied_first else "refuse")
    elif to == "split-spec":
        points = split_spec(captured, plan)
        modules = {path: point.name.lower() for path, point in points.items()}
        saved = {"split_spec": modules, "devices": stage_devices(plan)}
        summary = counted(len(modules), "module")
        return _Output("modules", modules, json.dumps(saved, indent=1) + "\n", summary, plan.stages)
    else:
        modules = checkpointed_modules(captured, plan, problem=problem)
    summary = counted(len(modules), "module")
    return _Output("modules", modules, json.dumps(modules, indent=1) + "\n", summary)
