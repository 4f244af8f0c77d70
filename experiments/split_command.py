"""The command ``split``: a model into the stages of a plan, checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands import make_console
from experiments.exit_codes import EXIT_NOT_EQUAL
from experiments.options import ModelArgument
from solver import PartitionError, load_plan
from solver.quantities import printable

if TYPE_CHECKING:
    from torch import fx

    from fx_bridge.capture import CapturedGraph


def split(
    model: ModelArgument,
    plan_file: Annotated[str, typer.Option("--plan", help="A plan that plan or solve wrote.")],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for one safetensors file a stage, the example inputs and a manifest, "
            "from which python -m experiments.run_pipeline loads.",
        ),
    ] = None,
) -> None:
    """Split a model by a plan, check that it computes the same, show and save the stages."""
    from experiments.models import build_model, others_code, resolve_model

    spec = resolve_model(model)
    if isinstance(spec, Path):
        raise PartitionError(f"{model} is a saved problem; split needs a model that can be built")
    chosen = load_plan(plan_file)

    from rich.table import Table
    from rich.text import Text

    from fx_bridge.capture import capture
    from fx_bridge.equivalence import check_equivalence
    from fx_bridge.splitting import split_by_plan
    from fx_bridge.stage_files import check_folder
    from solver.quantities import format_bytes

    loaded = build_model(spec)
    if out is not None and not loaded.has_weights:
        raise PartitionError(
            f"model {model!r} has no weights in memory, so there is nothing to write to {out}; "
            "leave out --out, or give a factory that makes real weights"
        )
    if out is not None:
        check_folder(out)
    with others_code(f"model {model!r}"):
        captured = capture(loaded.module, loaded.args, loaded.kwargs)
    parts = split_by_plan(captured, chosen)
    table = Table()
    for name in ("stage", "device", "operators", "parameters and buffers"):
        table.add_column(Text(name), justify="left" if name == "device" else "right")
    for index, (name, device) in enumerate(parts.meta["stages"].items()):
        stage = parts.get_submodule(name)
        tensors = (*stage.parameters(), *stage.buffers())
        size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        count = sum(position == index for position in chosen.stage_index.values())
        cells = (str(index), device, str(count))
        table.add_row(*(Text(printable(cell)) for cell in (*cells, format_bytes(size_bytes))))
    console = make_console()
    console.print(table)
    if not loaded.has_weights:
        console.print("The model has no weights in memory, so nothing was run.")
        return
    with others_code(f"model {model!r}"):
        report = check_equivalence(loaded.module, parts, loaded.args, loaded.kwargs)
    if not report.equal:
        reasons = "; ".join(str(difference) for difference in report.differences[:3])
        print(printable(f"error: the split computes something else: {reasons}"), file=sys.stderr)
        raise typer.Exit(EXIT_NOT_EQUAL)
    console.print(f"The split computes the same (largest error {report.max_abs_error:g}).")
    if out is not None:
        _save(parts, captured, out, model)


def _save(parts: fx.GraphModule, captured: CapturedGraph, out: str, model: str) -> None:
    from fx_bridge.manifest import MANIFEST
    from fx_bridge.saved_inputs import flat_tensors
    from fx_bridge.stage_files import save_stages
    from solver.quantities import format_bytes

    try:
        flat_tensors((captured.args, dict(captured.kwargs)))
    except PartitionError as error:
        # Each process can make them itself.
        print(printable(f"note: the inputs are not saved: {error}"), file=sys.stderr)
        with_inputs = False
    else:
        with_inputs = True
    manifest = save_stages(parts, captured, out, with_inputs=with_inputs, model_name=model)
    sizes_bytes = [stage.size_bytes for stage in manifest.stages]
    if manifest.inputs is not None:
        sizes_bytes.append(manifest.inputs.size_bytes)
    size = format_bytes(sum(sizes_bytes))
    print(printable(f"wrote {out}: {len(sizes_bytes)} files with {size}, and {MANIFEST}"))
