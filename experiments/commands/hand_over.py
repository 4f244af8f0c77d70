"""The command ``hand-over``: a plan as a file that accelerate or torch takes."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from experiments.commands.option_reading import check_given
from experiments.commands.options import (
    PLAN_FILE,
    BuiltModelArgument,
    ConstantOption,
    JsonOption,
    RegionsOption,
    out_option,
)
from experiments.console.output import check_writable, print_json, say_note
from solver import PartitionError, load_plan
from solver.io.files import write_text_atomically
from solver.model.quantities import counted, printable

Form = Literal["device-map", "split-spec", "programs"]
_TiedFirstOption = Annotated[
    bool,
    typer.Option(
        "--tied-first",
        help="Map modules that share a weight to the device of the first of them, instead of "
        "refusing such a plan.",
    ),
]


def hand_over(
    plan_file: Annotated[str, typer.Argument(**PLAN_FILE)],
    model: BuiltModelArgument,
    to: Annotated[Form, typer.Option(help="What to write the plan as.")],
    out: Annotated[str, out_option("FILE", "What to write; a folder for programs.")],
    tied_first: _TiedFirstOption = False,
    constant: ConstantOption = None,
    regions: RegionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a plan as a device map, a split specification or programs of torch.export.

    For example, for accelerate and transformers:

        fxpartition plan gpt2 --devices 3x300MB --keep-whole 'transformer.h.*'
            --out plan.json
        fxpartition hand-over plan.json gpt2 --to device-map --out map.json

    A plan that cannot be said in modules is refused, and why.
    """
    from experiments.problems.recomputed_plans import problem_of_plan
    from experiments.zoo.building import build_model, capture_model
    from experiments.zoo.models import resolve_built

    check_given(plan_file, "PLAN.json", "plan.json")
    check_given(out, "--out", "map.json")
    if tied_first and to != "device-map":
        raise PartitionError("--tied-first is about device maps; leave it out")
    spec = resolve_built(model)
    plan = load_plan(plan_file)
    if to != "programs":
        check_writable(out, plan_file, model)

    from fx_bridge.checkpoint.programs import save_stage_programs
    from fx_bridge.interop.write_plans import device_map, split_spec
    from fx_bridge.split.by_plan import split_by_plan

    loaded = build_model(spec)
    captured = capture_model(loaded, constant or ())
    say_note(captured)
    answer: dict[str, object] = {"to": to, "file": out}
    if to == "programs":
        problem = problem_of_plan(captured, plan, regions=regions or ())
        programs = save_stage_programs(split_by_plan(captured, plan, problem=problem), out)
        answer["programs"] = [stage.file for stage in programs.stages]
        told = counted(len(programs.stages), "program")
    else:
        content: dict[str, int | str]
        if to == "device-map":
            content = device_map(captured, plan, tied="first" if tied_first else "refuse")
        else:
            points = split_spec(captured, plan)
            content = {path: point.name.lower() for path, point in points.items()}
        write_text_atomically(out, json.dumps(content, indent=1) + "\n")
        answer["modules"] = content
        told = counted(len(content), "module")
    if as_json:
        print_json(answer)
    else:
        print(printable(f"wrote {out}: {told}"))
