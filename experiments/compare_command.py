"""The command ``compare``: greedy, contiguous and optimal plans side by side."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from experiments.commands import (
    make_console,
    read_limits,
    read_memory_model,
    read_objective,
)
from experiments.exit_codes import EXIT_NOT_EQUAL
from experiments.options import (
    ChunksOption,
    DeterministicOption,
    JsonOption,
    LimitOption,
    LinkOption,
    MaxDevicesOption,
    MemoryOption,
    ObjectiveOption,
    SeedOption,
    WorkersOption,
)
from solver import SOLVERS, PartitionError
from solver.quantities import printable


def compare(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="As for plan; without any, the default set."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Folder for results.json and report.md, made if missing."),
    ] = None,
    devices: Annotated[
        list[str] | None,
        typer.Option("--devices", help="As for plan; may be repeated. Derived if left out."),
    ] = None,
    link: LinkOption = None,
    objective: ObjectiveOption = None,
    memory_model: MemoryOption = None,
    chunks: ChunksOption = None,
    max_devices: MaxDevicesOption = None,
    time_limit: LimitOption = 30.0,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    deterministic: DeterministicOption = False,
    solver: Annotated[
        list[str] | None,
        typer.Option(
            "--solver",
            help=f"One of {', '.join(SOLVERS)}; may be repeated. "
            "Without it greedy, chain and auto.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare greedy, contiguous and optimal plans on real models."""
    from experiments.devices import parse_devices, parse_link
    from experiments.instances import NamedDevices
    from experiments.models import DEFAULT_MODELS, resolve_model
    from experiments.records import DEFAULT_PLANNERS, CompareSettings
    from experiments.report import prepare_folder
    from solver import PCIE, Interconnect

    sources = [resolve_model(name) for name in models or DEFAULT_MODELS]
    settings = CompareSettings(
        device_sets=tuple(NamedDevices(text, parse_devices(text)) for text in devices or ()),
        interconnect=PCIE if link is None else Interconnect(default=parse_link(link)),
        objective=read_objective(objective) or ("bottleneck",),
        memory_model=read_memory_model(memory_model) or "inference",
        chunks_per_device=chunks,
        max_devices=max_devices,
        planners=tuple(solver or DEFAULT_PLANNERS),
        limits=read_limits(time_limit, workers, seed, deterministic),
    )
    if out is not None:
        prepare_folder(out)

    from experiments.comparison import run_comparison
    from experiments.progress import ProgressLine
    from experiments.report import to_json, write_report
    from experiments.reports.headline import headline
    from experiments.reports.terminal import study_table

    with ProgressLine() as progress:
        study = run_comparison(sources, settings, progress)
    if as_json:
        print(json.dumps(to_json(study), indent=1))
    else:
        console = make_console()
        console.print(study_table(study, console.width))
        for sentence in headline(study):
            console.print(printable(sentence), markup=False)
    if out is not None:
        for path in write_report(study, out):
            print(printable(f"wrote {path}"), file=sys.stderr)
    if all(record.reason for record in study.models):
        raise PartitionError(f"no model could be compared: {study.models[0].reason}")
    if not all(check.equal for check in study.checks):
        raise typer.Exit(EXIT_NOT_EQUAL)
