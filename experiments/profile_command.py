"""The command ``profile``: what a model's operators take on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Final

import typer

from experiments.commands import check_writable, make_console
from experiments.options import JsonOption, ModelArgument, ThreadsOption, TrainingOption
from solver.quantities import format_bytes, format_ns, printable

_SHOWN: Final = 12


def profile(
    model: ModelArgument,
    out: Annotated[str | None, typer.Option("--out", help="File for the profile.")] = None,
    training: TrainingOption = False,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Runs of which medians are taken.")
    ] = 7,
    threads: ThreadsOption = 1,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            min=1,
            help="So many measure at once, as the stages of a pipeline share memory and caches.",
        ),
    ] = 1,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1, help="Seconds for everything.")
    ] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Measure a model's operators and the link between processes, for plan --profile."""
    from experiments.models import resolve_model
    from experiments.pipeline_group import PipelineGroup
    from experiments.profiling import ProfileSettings, measure_profile
    from experiments.progress import ProgressLine

    resolve_model(model)
    settings = ProfileSettings(training, repeats, processes)
    check_writable(out)
    with ProgressLine(quiet=True) as progress:
        progress.step(f"{model}: starting processes")
        with PipelineGroup(processes, threads=threads, time_limit_s=time_limit) as group:
            progress.step(f"{model}: measuring")
            found = measure_profile(model, settings, group)
    if out is not None:
        found.save(out)
        print(printable(f"wrote {out}"), file=sys.stderr)
    if as_json:
        print(json.dumps(found.to_dict(), indent=1))
        return

    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in ("operator", "forward", "backward", "workspace"):
        table.add_column(Text(name), justify="left" if name == "operator" else "right")
    total_ns = {name: t + found.backward_ns[name] for name, t in found.forward_ns.items()}
    for name in sorted(total_ns, key=total_ns.__getitem__, reverse=True)[:_SHOWN]:
        cells = (
            name,
            format_ns(found.forward_ns[name]),
            format_ns(found.backward_ns[name]),
            format_bytes(max(found.workspace_bytes[name], found.backward_workspace_bytes[name])),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console = make_console()
    console.print(table)
    sums = [sum(found.forward_ns.values()), sum(found.backward_ns.values())]
    console.print(
        f"{len(total_ns)} operators: forward {format_ns(sums[0])}, backward {format_ns(sums[1])}; "
        f"calibrated by {found.forward_permille / 1000:g} and {found.backward_permille / 1000:g}"
    )
    rate = found.link.bandwidth_bytes_per_s
    speed = "unlimited" if rate is None else f"{format_bytes(rate)}/s"
    console.print(f"link: {speed}, {format_ns(found.link.latency_ns)}")
