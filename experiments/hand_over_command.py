"""The command ``hand-over``: a plan as a file that accelerate or torch takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import typer

from experiments.commands import check_writable
from experiments.options import ModelArgument
from solver import PartitionError, load_plan
from solver.quantities import printable
from solver.serialization import write_text_atomically

Form = Literal["device-map", "split-spec", "programs"]
_FORMS: Final[tuple[Form, ...]] = get_args(Form)


def hand_over(
    plan_file: Annotated[
        str, typer.Argument(metavar="PLAN.json", help="A plan that plan or solve wrote.")
    ],
    model: ModelArgument,
    to: Annotated[str, typer.Option("--to", help=f"One of {', '.join(_FORMS)}.")],
    out: Annotated[str, typer.Option("--out", help="File to write; for programs a folder.")],
    tied_first: Annotated[
        bool,
        typer.Option(
            "--tied-first",
            help="Map modules that share a weight to the device of the first of them, instead of "
            "refusing such a plan.",
        ),
    ] = False,
) -> None:
    """Write a plan as a device map, a split specification or programs of torch.export."""
    from experiments.models import build_model, others_code, resolve_model

    if to not in _FORMS:
        raise PartitionError(f"--to is {to!r}; write one of {', '.join(_FORMS)}")
    if tied_first and to != "device-map":
        raise PartitionError("--tied-first is about device maps; leave it out")
    spec = resolve_model(model)
    if isinstance(spec, Path):
        raise PartitionError(
            f"{model} is a saved problem, which knows no modules; give the model itself"
        )
    plan = load_plan(plan_file)
    if to != "programs":
        check_writable(out)

    from fx_bridge.capture import capture
    from fx_bridge.hand_over import device_map, split_spec
    from fx_bridge.splitting import split_by_plan
    from fx_bridge.stage_programs import save_stage_programs

    loaded = build_model(spec)
    with others_code(f"model {model!r}"):
        captured = capture(loaded.module, loaded.args, loaded.kwargs)
    if to == "programs":
        programs = save_stage_programs(split_by_plan(captured, plan), out)
        print(printable(f"wrote {out}: {len(programs.stages)} programs"))
        return
    content: dict[str, int | str]
    if to == "device-map":
        content = device_map(captured, plan, tied="first" if tied_first else "refuse")
    else:
        points = split_spec(captured, plan)
        content = {path: point.name.lower() for path, point in points.items()}
    write_text_atomically(out, json.dumps(content, indent=1) + "\n")
    print(printable(f"wrote {out}: {len(content)} modules"))
