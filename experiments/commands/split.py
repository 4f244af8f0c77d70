"""The command ``split``: a model split into the stages of a plan, and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.commands.option_groups import with_option_groups
from experiments.commands.option_reading import check_given, read_capture
from experiments.commands.options import (
    PLAN_FILE,
    BuiltModelArgument,
    CaptureOptions,
    JsonOption,
    out_option,
)
from experiments.console.exit_codes import EXIT_NOT_EQUAL
from experiments.console.output import print_json, print_lines, say, say_note
from fx_bridge.presentation.modules import ModuleTree
from fx_bridge.presentation.tables import names_width, table_lines
from solver import PartitionError, PartitionPlan, load_plan
from solver.model.quantities import counted, format_bytes

if TYPE_CHECKING:
    from torch import fx

    from fx_bridge.capture.graph import CapturedGraph
    from fx_bridge.equivalence.check import EquivalenceReport

_PlanOption = Annotated[str, typer.Option("--plan", **PLAN_FILE)]
_OutOption = Annotated[
    str | None,
    out_option(
        "DIR",
        "Folder for one safetensors file a stage, the example inputs and a manifest, from which "
        "python -m experiments.run_pipeline loads.",
    ),
]


@with_option_groups
def split(
    model: BuiltModelArgument,
    plan_file: _PlanOption,
    capture: CaptureOptions,
    out: _OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Split a model by a plan, check that it computes the same, show and save the stages.

    For example:

        fxpartition plan gpt2 --devices 3x300MB --out plan.json
        fxpartition split gpt2 --plan plan.json --out stages

    The exit code is 4 if the split computes something else.
    """
    from experiments.problems.recomputed_plans import problem_of_plan
    from experiments.zoo.building import build_model, capture_model, others_code
    from experiments.zoo.models import resolve_built

    check_given(plan_file, "--plan", "plan.json")
    check_given(out, "--out", "stages")
    spec = resolve_built(model)
    chosen = load_plan(plan_file)

    from fx_bridge.checkpoint.stages import check_folder
    from fx_bridge.equivalence.check import check_equivalence
    from fx_bridge.split.by_plan import split_by_plan

    loaded = build_model(spec)
    if out is not None and not loaded.has_weights:
        raise PartitionError(
            f"model {model!r} has no weights in memory, so there is nothing to write to {out}; "
            "leave out --out, or give a factory that makes real weights"
        )
    if out is not None:
        check_folder(out)
    captured = capture_model(loaded, read_capture(capture))
    say_note(captured)
    if chosen.mode_of:
        streamed = counted(len(chosen.mode_of), "operator")
        say(f"note: the plan streams {streamed}; a stage has all of its weights")
    parts = split_by_plan(captured, chosen, problem=problem_of_plan(captured, chosen))
    report = None
    if loaded.has_weights:
        with others_code(f"model {model!r}"):
            report = check_equivalence(loaded.module, parts, loaded.args, loaded.kwargs)
    stages = _stages(captured, parts, chosen)
    written: dict[str, Any] | None = None
    if out is not None and report is not None and report.equal:
        written = _save(parts, captured, out, model)
    if as_json:
        print_json({"model": model, "stages": stages, **_checked(report), "written": written})
    else:
        _show(stages, report, written)
    if report is not None and not report.equal:
        reasons = "; ".join(_checked(report)["differences"][:3])
        advice = "" if capture.check else "; plan and split it with --check"
        say(f"error: the split computes something else: {reasons}{advice}")
        raise typer.Exit(EXIT_NOT_EQUAL)


def _stages(
    captured: CapturedGraph, parts: fx.GraphModule, plan: PartitionPlan
) -> list[dict[str, Any]]:

    modules = ModuleTree(captured.modules.innermost).stages(plan, names_width())
    counts = Counter(plan.stage_index.values())
    stages: list[dict[str, Any]] = []
    for index, (name, device) in enumerate(parts.meta["stages"].items()):
        module = parts.get_submodule(name)
        tensors = (*module.parameters(), *module.buffers())
        stages.append(
            {
                "stage": index,
                "name": name,
                "device": device,
                "operators": counts[index],
                "modules": modules[index],
                "weights_bytes": sum(each.numel() * each.element_size() for each in tensors),
            }
        )
    return stages


def _checked(report: EquivalenceReport | None) -> dict[str, Any]:
    """Return the result of the comparison as plain data, with None if nothing was run."""
    return {
        "equal": None if report is None else report.equal,
        "max_abs_error": None if report is None else report.max_abs_error,
        "differences": [] if report is None else [str(each) for each in report.differences],
    }


def _show(
    stages: Sequence[Mapping[str, Any]],
    report: EquivalenceReport | None,
    written: Mapping[str, Any] | None,
) -> None:
    header = ("stage", "device", "operators", "weights")
    rows = [
        (
            str(stage["stage"]),
            stage["device"],
            str(stage["operators"]),
            format_bytes(stage["weights_bytes"]),
        )
        for stage in stages
    ]
    lines = table_lines(
        header, rows, text=["device"], below=[[stage["modules"]] for stage in stages]
    )
    if report is None:
        lines.append("The model has no weights in memory, so nothing was run.")
    elif report.equal:
        lines.append(f"The split computes the same (largest error {report.max_abs_error:g}).")
    if written is not None:
        size = format_bytes(sum(each["size_bytes"] for each in written["files"]))
        files = counted(len(written["files"]), "file")
        lines.append(f"wrote {written['folder']}: {files} with {size}, and {written['manifest']}")
    print_lines(lines)


def _save(parts: fx.GraphModule, captured: CapturedGraph, out: str, model: str) -> dict[str, Any]:
    from fx_bridge.checkpoint.inputs import flat_tensors
    from fx_bridge.checkpoint.manifest import MANIFEST
    from fx_bridge.checkpoint.stages import save_stages

    try:
        flat_tensors((captured.args, dict(captured.kwargs)))
    except PartitionError as error:
        # Each process can create them itself.
        say(f"note: the inputs are not saved: {error}")
        with_inputs = False
    else:
        with_inputs = True
    manifest = save_stages(parts, captured, out, with_inputs=with_inputs, model_name=model)
    files = [*manifest.stages, *(() if manifest.inputs is None else (manifest.inputs,))]
    return {
        "folder": out,
        "manifest": MANIFEST,
        "files": [{"file": each.file, "size_bytes": each.size_bytes} for each in files],
    }
